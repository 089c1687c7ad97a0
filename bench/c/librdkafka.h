/* What the programs here use of librdkafka, declared once: its own header need not be installed. */
#ifndef LIBRDKAFKA_H
#define LIBRDKAFKA_H

#include <stddef.h>
#include <stdint.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_consumer_group_metadata_s rd_kafka_consumer_group_metadata_t;
typedef struct {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *private;
} rd_kafka_topic_partition_t;
typedef struct {
    int cnt, size;
    rd_kafka_topic_partition_t *elems;
} rd_kafka_topic_partition_list_t;
typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} rd_kafka_message_t;

#define PRODUCER 0
#define CONSUMER 1
#define OFFSET_BEGINNING -2
#define OFFSET_END -1
#define QUEUE_FULL -184

#endif
