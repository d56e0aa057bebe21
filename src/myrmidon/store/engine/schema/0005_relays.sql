-- oldest code: 1
-- Webhooks, and what was or is to be delivered to them.

-- next_at is NULL while nothing waits; a failed delivery sets it to the time of the next attempt.
CREATE TABLE IF NOT EXISTS webhooks (
    id {id},
    resource_group_id BIGINT NOT NULL,
    url {longtext} NOT NULL,
    kinds {longtext} NOT NULL,
    created_at BIGINT NOT NULL,
    after_position BIGINT NOT NULL,
    next_at BIGINT,
    holder BIGINT,
    held_until BIGINT,
    num_pending INT NOT NULL,
    num_failures INT NOT NULL,
    num_dropped BIGINT NOT NULL
){table};
CREATE INDEX IF NOT EXISTS webhooks_group ON webhooks (resource_group_id, id);
CREATE INDEX IF NOT EXISTS webhooks_next ON webhooks (next_at);

CREATE TABLE IF NOT EXISTS webhook_deliveries (
    webhook_id BIGINT NOT NULL,
    position BIGINT NOT NULL,
    message_id VARCHAR(40) NOT NULL,
    kind VARCHAR(32) NOT NULL,
    body {longtext} NOT NULL,
    state VARCHAR(16) NOT NULL,
    queued_at BIGINT NOT NULL,
    num_attempts INT NOT NULL,
    attempted_at BIGINT,
    status INT,
    error {longtext},
    PRIMARY KEY (webhook_id, position)
){clustered};
CREATE INDEX IF NOT EXISTS webhook_deliveries_state ON webhook_deliveries (webhook_id, state, position);
