"""Settings of a broker about groups, offsets, share groups, transactions and producers.

How a row is read: `ottla.config.kinds`.
"""

COORDINATION = """
# Classic groups
group.initial.rebalance.delay.ms int 3000       -
    How long an empty group waits for more members before its first assignment.
group.max.size                   int 2147483647 >=1
    Members allowed in a classic group.
group.min.session.timeout.ms     int 6000       -
    The shortest session timeout a classic member may ask for.
group.max.session.timeout.ms     int 1800000    -
    The longest session timeout a classic member may ask for.

# Committed offsets
offset.metadata.max.bytes           int   4096      -
    The longest note that may be stored with an offset.
offsets.commit.timeout.ms           int   5000      >=1
    How long a commit waits for its copies.
offsets.load.buffer.size            int   5242880   >=1 inert
    Bytes read at a time when offsets are loaded.
offsets.retention.minutes           int   10080     >=1
    Offsets of a group without members are forgotten after this.
offsets.retention.check.interval.ms long  600000    >=1
    How often that is checked.
offsets.topic.num.partitions        int   50        >=1
    Partitions of the offsets topic.
offsets.topic.replication.factor    short 3         >=1
    Copies of the offsets topic; no group starts with fewer brokers.
offsets.topic.segment.bytes         int   104857600 >=1
    Segment size of the offsets topic.
offsets.topic.compression.codec     int   0         -
    Codec of its records: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.

# The group coordinator
group.coordinator.rebalance.protocols     list classic,consumer,streams nonempty{consumer,classic,share,streams} inert
    The group protocols offered.
group.coordinator.append.linger.ms        int  -1                  >=-1     inert
    How long group records are gathered before a write; -1 lets load decide.
group.coordinator.threads                 int  4                   >=1      inert
    Threads for groups; one loop does this work here.
group.coordinator.background.threads      int  2                   >=1      inert
    Threads for its chores.
group.coordinator.cached.buffer.max.bytes int  1048588             >=524288 cluster inert
    The largest write buffer that is kept for reuse.

# Consumer groups of KIP-848
group.consumer.assignors                  list   uniform,range nonempty
    The assignors offered, the default first.
group.consumer.migration.policy           string bidirectional nocase{DISABLED,DOWNGRADE,UPGRADE,BIDIRECTIONAL}
    Which changes between classic and consumer are allowed while members are there.
group.consumer.max.size                   int    2147483647    >=1
    Members allowed.
group.consumer.session.timeout.ms         int    45000         >=1
    A member silent this long is removed.
group.consumer.min.session.timeout.ms     int    45000         >=1
    The least a group may set for that.
group.consumer.max.session.timeout.ms     int    60000         >=1
    The most a group may set for that.
group.consumer.heartbeat.interval.ms      int    5000          >=1
    How often members are told to report.
group.consumer.min.heartbeat.interval.ms  int    5000          >=1
    The least a group may set for that.
group.consumer.max.heartbeat.interval.ms  int    15000         >=1
    The most a group may set for that.
group.consumer.assignment.interval.ms     int    1000          >=0      cluster
    The shortest time between two assignments.
group.consumer.min.assignment.interval.ms int    0             >=0
    The least a group may set for that.
group.consumer.max.assignment.interval.ms int    15000         >=0
    The most a group may set for that.
group.consumer.regex.refresh.interval.ms  int    600000        >=10000  internal
    How often topic patterns are evaluated again.

# Share groups
group.share.assignors                      list   simple nonempty       inert
    The assignors offered; exactly one.
group.share.max.size                       int    200    1..1000        inert
    Members allowed.
group.share.max.share.sessions             int    2000   >=1            inert
    Share sessions kept per broker.
group.share.session.timeout.ms             int    45000  >=1            inert
    A member silent this long is removed.
group.share.min.session.timeout.ms         int    45000  >=1            inert
    The least a group may set for that.
group.share.max.session.timeout.ms         int    60000  >=1            inert
    The most a group may set for that.
group.share.heartbeat.interval.ms          int    5000   >=1            inert
    How often members are told to report.
group.share.min.heartbeat.interval.ms      int    5000   >=1            inert
    The least a group may set for that.
group.share.max.heartbeat.interval.ms      int    15000  >=1            inert
    The most a group may set for that.
group.share.assignment.interval.ms         int    1000   >=0            cluster inert
    The shortest time between two assignments.
group.share.min.assignment.interval.ms     int    0      >=0            inert
    The least a group may set for that.
group.share.max.assignment.interval.ms     int    15000  >=0            inert
    The most a group may set for that.
group.share.delivery.count.limit           int    5      2..10          inert
    A record given out this often is set aside.
group.share.min.delivery.count.limit       int    2      2..5           inert
    The least a group may set for that.
group.share.max.delivery.count.limit       int    10     5..25          inert
    The most a group may set for that.
group.share.record.lock.duration.ms        int    30000  1000..3600000  inert
    How long a consumer holds a record before it is given to another.
group.share.min.record.lock.duration.ms    int    15000  1000..30000    inert
    The least a group may set for that.
group.share.max.record.lock.duration.ms    int    60000  30000..3600000 inert
    The most a group may set for that.
group.share.partition.max.record.locks     int    2000   100..10000     inert
    Records of one partition that may be held at a time.
group.share.min.partition.max.record.locks int    100    100..2000      inert
    The least a group may set for that.
group.share.max.partition.max.record.locks int    4000   2000..10000    inert
    The most a group may set for that.
group.share.initialize.retry.interval.ms   int    30000  >=1            internal inert
    When a failed set-up of a share partition is tried again.
group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister - internal inert
    The Java class that stores share state.

# The share coordinator
share.coordinator.state.topic.num.partitions           int   50        >=1
    Partitions of the share state topic.
share.coordinator.state.topic.replication.factor       short 3         >=1
    Copies of the share state topic.
share.coordinator.state.topic.min.isr                  short 2         >=1
    Copies of it that must be in sync.
share.coordinator.state.topic.segment.bytes            int   104857600 >=1
    Segment size of it.
share.coordinator.state.topic.compression.codec        int   0         -        inert
    Codec of its records: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
share.coordinator.state.topic.prune.interval.ms        int   300000    >=1      internal inert
    How often what is no longer needed is cut off.
share.coordinator.snapshot.update.records.per.snapshot int   500       0..500   inert
    Changes written before a full state.
share.coordinator.cold.partition.snapshot.interval.ms  int   300000    >=1      internal inert
    When an idle partition gets a full state.
share.coordinator.append.linger.ms                     int   -1        >=-1     inert
    How long records are gathered before a write; -1 lets load decide.
share.coordinator.cached.buffer.max.bytes              int   1048588   >=524288 cluster inert
    The largest write buffer that is kept for reuse.
share.coordinator.load.buffer.size                     int   5242880   >=1      inert
    Bytes read at a time when state is loaded.
share.coordinator.threads                              int   1         >=1      inert
    Threads for it.
share.coordinator.write.timeout.ms                     int   5000      >=1      inert
    How long a write waits for its copies.

# Streams groups
group.streams.max.size                   int 2147483647 >=1 inert
    Members allowed.
group.streams.initial.rebalance.delay.ms int 3000       >=0 inert
    How long an empty group waits for more members.
group.streams.session.timeout.ms         int 45000      >=1 inert
    A member silent this long is removed.
group.streams.min.session.timeout.ms     int 45000      >=1 inert
    The least a group may set for that.
group.streams.max.session.timeout.ms     int 60000      >=1 inert
    The most a group may set for that.
group.streams.heartbeat.interval.ms      int 5000       >=1 inert
    How often members are told to report.
group.streams.min.heartbeat.interval.ms  int 5000       >=1 inert
    The least a group may set for that.
group.streams.max.heartbeat.interval.ms  int 15000      >=1 inert
    The most a group may set for that.
group.streams.assignment.interval.ms     int 1000       >=0 cluster inert
    The shortest time between two assignments.
group.streams.min.assignment.interval.ms int 0          >=0 inert
    The least a group may set for that.
group.streams.max.assignment.interval.ms int 15000      >=0 inert
    The most a group may set for that.
group.streams.num.standby.replicas       int 0          >=0 inert
    Spare copies of each task's state.
group.streams.max.standby.replicas       int 2          >=0 inert
    The most a group may set for that.

# Transactions and producers
producer.id.expiration.ms                                   int     86400000  >=1 cluster
    An idle producer is forgotten after this.
producer.id.expiration.check.interval.ms                    int     600000    >=1 internal
    How often that is checked.
transaction.max.timeout.ms                                  int     900000    >=1
    The longest transaction timeout a producer may ask for.
transaction.partition.verification.enable                   boolean true      -   cluster
    Whether a write is refused unless its transaction knows the partition.
transaction.two.phase.commit.enable                         boolean false     -
    Whether transactions may stay prepared for an outside coordinator.
transaction.abort.timed.out.transaction.cleanup.interval.ms int     10000     >=1
    How often overdue transactions are aborted.
transaction.remove.expired.transaction.cleanup.interval.ms  int     3600000   >=1
    How often expired transactional ids are removed.
transactional.id.expiration.ms                              int     604800000 >=1
    An unused transactional id is forgotten after this.
transaction.state.log.num.partitions                        int     50        >=1
    Partitions of the transactions topic.
transaction.state.log.replication.factor                    short   3         >=1
    Copies of the transactions topic.
transaction.state.log.min.isr                               int     2         >=1
    Copies of it that must be in sync.
transaction.state.log.segment.bytes                         int     104857600 >=1
    Segment size of it.
transaction.state.log.load.buffer.size                      int     5242880   >=1 inert
    Bytes read at a time when transactions are loaded.
add.partitions.to.txn.retry.backoff.ms                      int     20        >=1 inert
    Pause before a busy transaction is asked again on a producer's behalf; here the coordinator answers as soon as it can.
add.partitions.to.txn.retry.backoff.max.ms                  int     100       >=0
    How long a request may wait for the end of the transaction before.
"""
