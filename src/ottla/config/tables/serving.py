"""Settings of a node as a server: its identity, listeners, connections, requests, quorum, quotas, metrics.

How a row is read: `ottla.config.kinds`.
"""

SERVING = """
# Who this node is
node.id       int    required >=0
    The number of this node, unique in its cluster.
broker.id     int    -1       -
    Older name of node.id; each stands in for the other.
process.roles list   required nonempty{broker,controller}
    What this node does: serve clients, vote on metadata, or both.
broker.rack   string -        -
    Where this broker stands; copies of a partition are spread over racks.

# Listeners
listeners                      list   PLAINTEXT://:9092 nonempty broker
    Where to listen: NAME://host:port, comma separated; no host means every interface.
advertised.listeners           list   -                 nonempty
    What clients are told to connect to, where that differs from listeners.
listener.security.protocol.map \
string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT - broker
    Which security protocol each listener name speaks.
inter.broker.listener.name     string -                 -
    The listener that brokers use among themselves.
security.inter.broker.protocol string PLAINTEXT         {PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL}
    Picks the inter-broker listener by protocol, when it is not named.
controller.listener.names      list   required          nonempty
    The listeners that belong to the controller, not to clients.
early.start.listeners          list   -                 -        inert
    Listeners to open before the authorizer has loaded.

# Sockets and connections
socket.send.buffer.bytes                  int    102400     - inert
    Kernel send buffer per connection; -1 leaves the system's choice.
socket.receive.buffer.bytes               int    102400     - inert
    Kernel receive buffer per connection; -1 leaves the system's choice.
socket.listen.backlog.size                int    50         >=1
    How many connections may wait to be accepted.
socket.request.max.bytes                  int    104857600  >=1
    The largest request frame; a larger one ends the connection.
max.connections                           int    2147483647 >=0 cluster
    Connections allowed in all.
max.connections.per.ip                    int    2147483647 >=0 cluster
    Connections allowed from one address.
max.connections.per.ip.overrides          string ""         -   cluster
    Exceptions to the limit per address: address:count, comma separated.
max.connection.creation.rate              int    2147483647 >=0 cluster
    New connections accepted per second.
connections.max.idle.ms                   long   600000     -
    A connection that is silent this long is closed.
connection.failed.authentication.delay.ms int    100        >=0 inert
    How long a failed login is kept waiting, to slow down guessing.
queued.max.requests                       int    500        >=1 inert
    Requests that may wait for a handler thread; we bound what is in flight per connection instead.
queued.max.request.bytes                  long   -1         -   inert
    Bytes of waiting requests, all connections together; -1 is unbounded.
request.timeout.ms                        int    30000      -
    How long this node waits for the answer of another node, or for records of its own to be safe.
socket.connection.setup.timeout.ms        long   10000      -
    How long connecting to another node may take.
socket.connection.setup.timeout.max.ms    long   30000      -   inert
    The cap up to which that time grows after failures.

# Threads of the JVM; one loop does this work here
num.network.threads int 3  >=1 cluster inert
    Threads for sockets.
num.io.threads      int 8  >=1 cluster inert
    Threads for requests.
background.threads  int 10 >=1 cluster inert
    Threads for chores.

# Requests
auto.create.topics.enable                        boolean true     -
    Whether asking for an unknown topic creates it.
delete.topic.enable                              boolean true     -
    Whether topics can be deleted.
num.partitions                                   int     1        >=1
    Partitions of a topic whose creator did not say.
default.replication.factor                       int     1        -
    Copies of a topic whose creator did not say.
fetch.max.bytes                                  int     57671680 >=1024
    The most one Fetch answers with, whatever the client allows.
max.incremental.fetch.session.cache.slots        int     1000     >=0
    Fetch sessions kept at a time.
max.request.partition.size.limit                 int     2000     >=1
    The most partitions one DescribeTopicPartitions answers with.
create.topic.policy.class.name                   class   -        -      inert
    A Java class that may veto new topics.
alter.config.policy.class.name                   class   -        -      inert
    A Java class that may veto config changes.
fetch.purgatory.purge.interval.requests          int     1000     -      inert
    When to sweep parked fetches; ours leave at once.
producer.purgatory.purge.interval.requests       int     1000     -      inert
    When to sweep parked produces; ours leave at once.
delete.records.purgatory.purge.interval.requests int     1        -      inert
    When to sweep parked deletions; ours leave at once.
share.fetch.purgatory.purge.interval.requests    int     1000     -      inert
    When to sweep parked share fetches.

# Start and stop
controlled.shutdown.enable             boolean true  - inert
    Hand over leaderships before stopping.
initial.broker.registration.timeout.ms int     60000 -
    How long a broker tries to register before it gives up.
broker.heartbeat.interval.ms           int     2000  -
    How often a broker tells the controller that it is alive.
broker.session.timeout.ms              int     9000  -
    A broker that is silent this long is fenced.
config.providers                       list    ""    - cluster inert
    Sources that fill ${...} in values.

# The metadata quorum
controller.quorum.voters                   list    ""      any
    Fixed voters, id@host:port; new clusters use bootstrap servers instead.
controller.quorum.bootstrap.servers        list    ""      any
    Where to ask first for the quorum, host:port.
controller.quorum.auto.join.enable         boolean false   -
    Whether a new controller makes itself a voter.
controller.quorum.append.linger.ms         int     25      >=0 inert
    How long the leader gathers records before it writes; we write at once.
controller.quorum.election.timeout.ms      int     1000    >=0
    How long a candidate waits for votes.
controller.quorum.election.backoff.max.ms  int     1000    >=0
    The cap on the random pause between elections.
controller.quorum.fetch.timeout.ms         int     2000    >=0
    A voter that could not fetch this long stands for election.
controller.quorum.fetch.max.bytes          int     1048576 >=1
    The most one Fetch of the metadata log brings.
controller.quorum.fetch.snapshot.max.bytes int     1048576 >=1
    The most one piece of a metadata snapshot brings.
controller.quorum.request.timeout.ms       int     2000    >=0
    How long a quorum request may take.
controller.quorum.retry.backoff.ms         int     20      >=0
    The pause before a quorum request is tried again.
controller.socket.timeout.ms               int     30000   -   inert
    How long a request to the controller may take.

# The metadata log
metadata.log.dir                                string  -                   -
    Where the metadata log lives; the first of log.dirs when not set.
metadata.log.segment.bytes                      int     1073741824          >=8388608
    A metadata segment is closed at this size.
metadata.log.segment.ms                         long    604800000           -
    A metadata segment is closed at this age.
metadata.log.max.record.bytes.between.snapshots long    20971520            >=1
    New metadata bytes after which a snapshot is written.
metadata.log.max.snapshot.interval.ms           long    3600000             >=0
    A snapshot is written at least this often, if anything changed; 0 is never.
metadata.max.idle.interval.ms                   int     500                 >=0       inert
    How often an idle controller writes a no-op; ours writes none.
metadata.max.retention.bytes                    long    104857600           -
    Metadata older than a snapshot is deleted beyond this size.
metadata.max.retention.ms                       long    604800000           -
    Metadata older than a snapshot is deleted beyond this age.
internal.metadata.log.segment.bytes             int     -                   -         internal inert
    For tests: closes metadata segments earlier.
internal.metadata.max.batch.size.in.bytes       int     8388608             -         internal inert
    For tests: the largest batch of metadata.
internal.metadata.delete.delay.millis           long    60000               -         internal inert
    For tests: how long deleted metadata files linger.
controller.performance.sample.period.ms         long    60000               >=100     internal inert
    How often slow controller events are summed up.
controller.performance.always.log.threshold.ms  long    2000                >=0       internal inert
    A controller event slower than this is logged.
server.max.startup.time.ms                      long    9223372036854775807 >=0       internal inert
    A start that takes longer is given up.
unstable.api.versions.enable                    boolean false               -         internal inert
    Offer API versions that are not final.
unstable.feature.versions.enable                boolean false               -         internal inert
    Offer feature levels that are not final.

# Quotas
quota.window.num                                     int   11                  >=1
    Samples kept for client quotas.
quota.window.size.seconds                            int   1                   >=1
    Length of one sample for client quotas.
replication.quota.window.num                         int   11                  >=1 inert
    Samples kept for replication throttles.
replication.quota.window.size.seconds                int   1                   >=1 inert
    Length of one sample for replication throttles.
alter.log.dirs.replication.quota.window.num          int   11                  >=1 inert
    Samples kept for throttled moves between directories.
alter.log.dirs.replication.quota.window.size.seconds int   1                   >=1 inert
    Length of one sample for throttled moves between directories.
controller.quota.window.num                          int   11                  >=1
    Samples kept for quotas on topic changes.
controller.quota.window.size.seconds                 int   1                   >=1
    Length of one sample for quotas on topic changes.
client.quota.callback.class                          class -                   -   inert
    A Java class that decides client quotas.
leader.replication.throttled.rate                    long  9223372036854775807 >=0 cluster
    Bytes per second a leader sends to throttled followers.
follower.replication.throttled.rate                  long  9223372036854775807 >=0 cluster
    Bytes per second a throttled follower takes.
replica.alter.log.dirs.io.max.bytes.per.second       long  9223372036854775807 >=0 cluster
    Bytes per second for moves between directories.

# Metrics
metric.reporters                    list   org.apache.kafka.common.metrics.JmxReporter -   cluster inert
    Java classes that publish metrics; ours are on the metrics port.
metrics.num.samples                 int    2       >=1 inert
    Samples kept per metric.
metrics.sample.window.ms            long   30000   >=1 inert
    Length of one sample.
metrics.recording.level             string INFO    -   inert
    How much detail is recorded.
kafka.metrics.reporters             list   ""      -   inert
    Java classes that publish the older metrics.
kafka.metrics.polling.interval.secs int    10      >=1 inert
    How often those are asked.
telemetry.max.bytes                 int    1048576 >=1 inert
    The largest metrics push of a client.
"""

# Ours alone: Apache Kafka has no such settings, so they are listed only where someone set them.
OWN = """
ottla.connection.requests.in.flight.max int 100 >=1
    Requests of one connection that are worked on at a time; the rest stays in its socket.
ottla.connection.frame.deadline.ms      long 10000 >=1
    A new connection that has not completed its first request by then is closed.
ottla.controller.port.fallback          boolean false -
    When the port of the controller's listener is taken, listen on a free one instead of refusing to start.
min.incremental.fetch.session.eviction.ms long 120000 >=0
    A fetch session younger than this keeps its slot against newcomers of the same kind.
"""
