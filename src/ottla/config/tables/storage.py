"""Settings of a broker about data: directories, segments, retention, flushing, compaction, copies, tiers.

How a row is read: `ottla.config.kinds`.
"""

STORAGE = """
# Where data lives
log.dirs                          list -               nonempty
    The data directories; partitions are spread over them. Wins over log.dir.
log.dir                           list /tmp/kafka-logs nonempty
    The data directory, when log.dirs is not set.
cordoned.log.dirs                 list ""              -        broker
    Directories that get no new partitions.
log.dir.failure.timeout.ms        long 30000           >=1
    A broker stops when it cannot report a failed directory for this long.
num.recovery.threads.per.data.dir int  2               >=1      cluster inert
    Threads that check logs at start; we check them one after the other.
log.initial.task.delay.ms         long 30000           >=0      internal
    Pause after the start before the first round of chores.

# Segments
log.segment.bytes           int     1073741824 >=1048576 cluster
    A segment is closed at this size.
log.roll.ms                 long    -          -         cluster
    A segment is closed at this age, by record timestamps.
log.roll.hours              int     168        >=1
    The same in hours, when log.roll.ms is not set.
log.roll.jitter.ms          long    -          -         cluster
    Up to this much is taken off that age at random, so that not all close at once.
log.roll.jitter.hours       int     0          >=0
    The same in hours, when log.roll.jitter.ms is not set.
log.index.size.max.bytes    int     10485760   >=4       cluster
    A segment is closed when its index has this size.
log.index.interval.bytes    int     4096       >=0       cluster
    One index entry per this many bytes of data.
log.preallocate             boolean false      -         cluster inert
    Reserve the whole segment file when it is created.
log.segment.delete.delay.ms long    60000      >=0       cluster
    How long a deleted file stays under its new name, for readers that still use it.

# Retention
log.retention.ms                long -      -                cluster
    Records older than this are deleted; -1 keeps them for ever.
log.retention.minutes           int  -      -
    The same in minutes, when log.retention.ms is not set.
log.retention.hours             int  168    -
    The same in hours, when neither of the finer ones is set.
log.retention.bytes             long -1     -                cluster
    A partition above this size loses its oldest segments; -1 is no limit.
log.retention.check.interval.ms long 300000 >=1
    How often retention looks for something to delete.
log.cleanup.policy              list delete {compact,delete} cluster
    What happens to old data: delete it, compact it by key, or both.

# Flushing
log.flush.interval.messages                   long 9223372036854775807 >=1 cluster
    fsync after this many records, and before they are acknowledged.
log.flush.interval.ms                         long -                   -   cluster
    fsync what has been unsynced this long.
log.flush.scheduler.interval.ms               long 9223372036854775807 -
    How often the latter is checked.
log.flush.offset.checkpoint.interval.ms       int  60000               >=0
    How often the recovery points are written down.
log.flush.start.offset.checkpoint.interval.ms int  60000               >=0 inert
    How often the log start offsets are written down; here together with the recovery points.

# Records
message.max.bytes                   int    1048588             >=0              cluster
    The largest record batch taken, after compression.
compression.type                    string producer            {uncompressed,zstd,lz4,snappy,gzip,producer} cluster
    The codec that data is kept in; producer keeps what came.
compression.gzip.level              int    -1                  1..9|-1          cluster
    Effort of gzip, -1 for its own default.
compression.lz4.level               int    9                   1..17            cluster
    Effort of lz4.
compression.zstd.level              int    3                   -131072..22      cluster
    Effort of zstd.
log.message.timestamp.type          string CreateTime          {CreateTime,LogAppendTime} cluster
    Whether a record's time is set by its producer or on arrival.
log.message.timestamp.before.max.ms long   9223372036854775807 >=0              cluster
    How far a producer's timestamp may lie in the past.
log.message.timestamp.after.max.ms  long   3600000             >=0              cluster
    How far a producer's timestamp may lie in the future.

# Compaction
log.cleaner.enable                  boolean true                -
    Whether compaction runs at all.
log.cleaner.threads                 int     1                   >=0  cluster
    How many partitions are compacted at a time.
log.cleaner.io.max.bytes.per.second double  1.7976931348623157E308 -    cluster
    Bytes that compaction reads and writes per second.
log.cleaner.dedupe.buffer.size      long    134217728           -    cluster
    Memory for the table of keys.
log.cleaner.io.buffer.size          int     524288              >=0  cluster
    Memory for reading and writing.
log.cleaner.io.buffer.load.factor   double  0.9                 -    cluster
    How full the table of keys may become.
log.cleaner.backoff.ms              long    15000               >=0  cluster
    Pause when there is nothing to compact.
log.cleaner.min.cleanable.ratio     double  0.5                 0..1 cluster
    The share of uncompacted bytes at which a partition is due.
log.cleaner.delete.retention.ms     long    86400000            >=0  cluster
    How long a tombstone stays readable.
log.cleaner.min.compaction.lag.ms   long    0                   >=0  cluster
    A record younger than this is never compacted away.
log.cleaner.max.compaction.lag.ms   long    9223372036854775807 >=1  cluster
    A record older than this makes its partition due.

# Copies
min.insync.replicas                           int     1        >=1 cluster
    With acks=all, a write is refused when fewer copies are in sync.
unclean.leader.election.enable                boolean false    -   cluster
    Whether a copy that lags may lead when no other is left; data can be lost.
unclean.leader.election.interval.ms           long    300000   >=1 internal
    How often that is tried.
auto.leader.rebalance.enable                  boolean true     -
    Whether leadership returns to the preferred copy by itself.
leader.imbalance.check.interval.seconds       long    300      >=1
    How often that is checked.
num.replica.fetchers                          int     1        >=1 cluster inert
    Connections per leader that a follower fetches with.
num.replica.alter.log.dirs.threads            int     -        -
    Threads that move copies between directories.
replica.lag.time.max.ms                       long    30000    -
    A follower that has not caught up for this long leaves the in-sync set.
replica.fetch.max.bytes                       int     1048576  >=0
    Bytes per partition that a follower asks for.
replica.fetch.response.max.bytes              int     10485760 >=0
    Bytes in all that a follower asks for.
replica.fetch.min.bytes                       int     1        -
    A leader may wait until it has this much for a follower.
replica.fetch.wait.max.ms                     int     500      -
    How long it may wait for that.
replica.fetch.backoff.ms                      int     1000     >=0
    A follower's pause after an error.
replica.socket.timeout.ms                     int     30000    -
    How long a follower's request may take.
replica.socket.receive.buffer.bytes           int     65536    -   inert
    Kernel receive buffer of a follower's connection.
replica.high.watermark.checkpoint.interval.ms long    5000     -
    How often the high watermarks of partitions with several copies are written down; others with the recovery points.
replica.selector.class                        string  -        -
    A Java class that picks the copy a consumer reads from.

# Tiered storage
remote.log.storage.system.enable                   boolean false               -        inert
    Whether segments can move to an object store.
log.local.retention.ms                             long    -2                  >=-2     cluster inert
    How long a tiered segment also stays here; -2 follows retention.
log.local.retention.bytes                          long    -2                  >=-2     cluster inert
    How much of a tiered partition also stays here; -2 follows retention.
follower.fetch.last.tiered.offset.enable           boolean false               -        cluster inert
    Whether an empty follower starts behind what is already tiered.
remote.fetch.max.wait.ms                           int     500                 >=1      cluster inert
    How long a Fetch waits for the object store.
remote.list.offsets.request.timeout.ms             long    30000               >=1      cluster inert
    How long a search for an offset in the object store may take.
remote.log.storage.manager.class.name              string  -                   nonempty inert
    The Java class that talks to the object store.
remote.log.storage.manager.class.path              string  -                   -        inert
    Where that class is found.
remote.log.storage.manager.impl.prefix             string  rsm.config.         nonempty inert
    Settings with this prefix are handed to it.
remote.log.metadata.manager.class.name \
string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager nonempty inert
    The Java class that remembers what was tiered.
remote.log.metadata.manager.class.path             string  -                   -        inert
    Where that class is found.
remote.log.metadata.manager.impl.prefix            string  rlmm.config.        nonempty inert
    Settings with this prefix are handed to it.
remote.log.metadata.manager.listener.name          string  -                   nonempty inert
    The listener it connects to.
remote.log.metadata.custom.metadata.max.bytes      int     128                 >=0      inert
    The most that the store's class may remember per segment.
remote.log.manager.task.interval.ms                long    30000               >=1      inert
    How often each partition is looked at for tiering.
remote.log.manager.task.retry.backoff.ms           long    500                 >=1      internal inert
    First pause after a failure.
remote.log.manager.task.retry.backoff.max.ms       long    30000               >=1      internal inert
    Longest pause after failures.
remote.log.manager.task.retry.jitter               double  0.2                 0..0.5   internal inert
    Share of that pause that is random.
remote.log.manager.thread.pool.size                int     2                   >=1      inert
    Threads for tiering in all, in older releases.
remote.log.manager.copier.thread.pool.size         int     10                  >=1      cluster inert
    Threads that copy segments out.
remote.log.manager.expiration.thread.pool.size     int     10                  >=1      cluster inert
    Threads that delete expired segments.
remote.log.manager.follower.thread.pool.size       int     2                   >=1      cluster inert
    Threads for the partitions this node follows.
remote.log.manager.copy.max.bytes.per.second       long    9223372036854775807 >=1      cluster inert
    Bytes per second copied out.
remote.log.manager.copy.quota.window.num           int     11                  >=1      inert
    Samples kept for that limit.
remote.log.manager.copy.quota.window.size.seconds  int     1                   >=1      inert
    Length of one of them.
remote.log.manager.fetch.max.bytes.per.second      long    9223372036854775807 >=1      cluster inert
    Bytes per second read back.
remote.log.manager.fetch.quota.window.num          int     11                  >=1      inert
    Samples kept for that limit.
remote.log.manager.fetch.quota.window.size.seconds int     1                   >=1      inert
    Length of one of them.
remote.log.reader.threads                          int     10                  >=1      cluster inert
    Threads that read from the object store.
remote.log.reader.max.pending.tasks                int     100                 >=1      inert
    Reads that may wait for them.
remote.log.index.file.cache.total.size.bytes       long    1073741824          >=1      cluster inert
    Disk space for indexes of tiered segments.
remote.log.index.file.cache.ttl.ms                 long    900000              >=-1     internal inert
    How long an unused one is kept; -1 is for ever.
"""
