"""Settings of single topics, groups and client metrics subscriptions.

How a row is read: `ottla.config.kinds`. After `=` stand the broker settings that apply where the topic or group has no
value of its own, the strongest first.
"""

TOPICS = """
# Segments
segment.bytes          int     1073741824 >=1048576 =log.segment.bytes
    A segment is closed at this size.
segment.ms             long    604800000  >=1       =log.roll.ms,log.roll.hours
    A segment is closed at this age, by record timestamps.
segment.jitter.ms      long    0          >=0       =log.roll.jitter.ms,log.roll.jitter.hours
    Up to this much is taken off that age at random, so that not all close at once.
segment.index.bytes    int     10485760   >=4       =log.index.size.max.bytes
    A segment is closed when its index has this size.
index.interval.bytes   int     4096       >=0       =log.index.interval.bytes
    One index entry per this many bytes of data.
preallocate            boolean false      -         =log.preallocate inert
    Reserve the whole segment file when it is created.
file.delete.delay.ms   long    60000      >=0       =log.segment.delete.delay.ms
    How long a deleted file stays under its new name, for readers that still use it.
internal.segment.bytes int     -          -         internal
    For tests: segments smaller than segment.bytes allows.

# Retention
cleanup.policy  list delete    {compact,delete} =log.cleanup.policy
    What happens to old data: delete it, compact it by key, or both; empty keeps all.
retention.ms    long 604800000 >=-1             =log.retention.ms,log.retention.minutes,log.retention.hours
    Records older than this are deleted; -1 keeps them for ever.
retention.bytes long -1        -                =log.retention.bytes
    A partition above this size loses its oldest segments; -1 is no limit.

# Flushing
flush.messages long 9223372036854775807 >=1 =log.flush.interval.messages
    fsync after this many records; 1 means before each acknowledgement.
flush.ms       long 9223372036854775807 >=0 =log.flush.interval.ms,log.flush.scheduler.interval.ms
    fsync what has been unsynced this long.

# Records
max.message.bytes               int    1048588             >=0              =message.max.bytes
    The largest record batch taken, after compression.
compression.type string producer {uncompressed,zstd,lz4,snappy,gzip,producer} =compression.type
    The codec that data is kept in; producer keeps what came.
compression.gzip.level          int    -1                  1..9|-1          =compression.gzip.level
    Effort of gzip, -1 for its own default.
compression.lz4.level           int    9                   1..17            =compression.lz4.level
    Effort of lz4.
compression.zstd.level          int    3                   -131072..22      =compression.zstd.level
    Effort of zstd.
message.timestamp.type          string CreateTime          {CreateTime,LogAppendTime} =log.message.timestamp.type
    Whether a record's time is set by its producer or on arrival.
message.timestamp.before.max.ms long   9223372036854775807 >=0              =log.message.timestamp.before.max.ms
    How far a producer's timestamp may lie in the past.
message.timestamp.after.max.ms  long   3600000             >=0              =log.message.timestamp.after.max.ms
    How far a producer's timestamp may lie in the future.

# Compaction
min.cleanable.dirty.ratio double 0.5                 0..1 =log.cleaner.min.cleanable.ratio
    The share of uncompacted bytes at which a partition is due.
min.compaction.lag.ms     long   0                   >=0  =log.cleaner.min.compaction.lag.ms
    A record younger than this is never compacted away.
max.compaction.lag.ms     long   9223372036854775807 >=1  =log.cleaner.max.compaction.lag.ms
    A record older than this makes its partition due.
delete.retention.ms       long   86400000            >=0  =log.cleaner.delete.retention.ms
    How long a tombstone stays readable.

# Copies
min.insync.replicas                     int     1     >=1       =min.insync.replicas
    With acks=all, a write is refused when fewer copies are in sync.
unclean.leader.election.enable          boolean false -         =unclean.leader.election.enable
    Whether a copy that lags may lead when no other is left; data can be lost.
leader.replication.throttled.replicas   list    ""    throttled
    Copies whose leader sends slowly: partition:broker pairs, or *.
follower.replication.throttled.replicas list    ""    throttled
    Copies that fetch slowly: partition:broker pairs, or *.

# Tiered storage
remote.storage.enable        boolean false -    inert
    Whether closed segments move to the object store.
local.retention.ms           long    -2    >=-2 =log.local.retention.ms inert
    How long a tiered segment also stays here; -2 follows retention.ms.
local.retention.bytes        long    -2    >=-2 =log.local.retention.bytes inert
    How much of a tiered partition also stays here; -2 follows retention.bytes.
remote.log.copy.disable      boolean false -    inert
    Stop moving segments out, keep reading those that moved.
remote.log.delete.on.disable boolean false -    inert
    Delete what moved out when tiering is switched off.
"""

GROUPS = """
# Consumer groups
consumer.session.timeout.ms     int 45000 >=1 =group.consumer.session.timeout.ms
    A member silent this long is removed.
consumer.heartbeat.interval.ms  int 5000  >=1 =group.consumer.heartbeat.interval.ms
    How often members are told to report.
consumer.assignment.interval.ms int 1000  >=0 =group.consumer.assignment.interval.ms
    The shortest time between two assignments.

# Share groups
share.session.timeout.ms         int     45000            >=1    =group.share.session.timeout.ms inert
    A member silent this long is removed.
share.heartbeat.interval.ms      int     5000             >=1    =group.share.heartbeat.interval.ms inert
    How often members are told to report.
share.assignment.interval.ms     int     1000             >=0    =group.share.assignment.interval.ms inert
    The shortest time between two assignments.
share.auto.offset.reset          string  latest           reset  inert
    Where a group begins: latest, earliest, or by_duration:PT1H and the like.
share.isolation.level            string  read_uncommitted {read_committed,read_uncommitted} inert
    Whether records of open and aborted transactions are given out.
share.delivery.count.limit       int     5                >=2    =group.share.delivery.count.limit inert
    A record given out this often is set aside.
share.record.lock.duration.ms    int     30000            >=1000 =group.share.record.lock.duration.ms inert
    How long a consumer holds a record before it is given to another.
share.partition.max.record.locks int     2000             >=100  =group.share.partition.max.record.locks inert
    Records of one partition that may be held at a time.
share.renew.acknowledge.enable   boolean true             -      inert
    Whether a consumer may prolong its hold on a record.

# Streams groups
streams.session.timeout.ms         int 45000 >=1 =group.streams.session.timeout.ms inert
    A member silent this long is removed.
streams.heartbeat.interval.ms      int 5000  >=1 =group.streams.heartbeat.interval.ms inert
    How often members are told to report.
streams.assignment.interval.ms     int 1000  >=0 =group.streams.assignment.interval.ms inert
    The shortest time between two assignments.
streams.initial.rebalance.delay.ms int 3000  >=0 =group.streams.initial.rebalance.delay.ms inert
    How long an empty group waits for more members.
streams.num.standby.replicas       int 0     >=0 =group.streams.num.standby.replicas inert
    Spare copies of each task's state.
"""

CLIENT_METRICS = """
# Client metrics subscriptions
metrics     list ""     - inert
    Names or prefixes of the metrics wanted.
interval.ms int  300000 - inert
    How often clients push them.
match       list ""     - inert
    Which clients: name=pattern, comma separated.
"""
