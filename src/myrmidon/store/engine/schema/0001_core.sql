-- oldest code: 1
-- All tables. Ids and times (microseconds, UTC) come from the caller; no statement reads a clock.
-- {id} is a 63-bit primary key, {clustered} ends a table that is stored in the order of its key, {table} any other one.

-- ---------------------------------------------------------------- servers

CREATE TABLE IF NOT EXISTS shared_numbers (
    name VARCHAR(64) NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
){clustered};

CREATE TABLE IF NOT EXISTS schedulers (
    id {id},
    address VARCHAR(40) NOT NULL,
    port INT NOT NULL,
    heartbeat BIGINT NOT NULL,
    slot INT NOT NULL UNIQUE
){table};

-- Secret keys that all servers share; the first server creates them.
CREATE TABLE IF NOT EXISTS server_keys (
    name VARCHAR(32) NOT NULL PRIMARY KEY,
    value {blob} NOT NULL,
    created_at BIGINT NOT NULL
){table};

CREATE TABLE IF NOT EXISTS tokens (
    id {id},
    name VARCHAR(256) NOT NULL,
    secret_hash VARCHAR(64) NOT NULL,
    role VARCHAR(32) NOT NULL,
    resource_group_id BIGINT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
){table};

CREATE TABLE IF NOT EXISTS request_keys (
    resource_group_id BIGINT NOT NULL,
    request_key VARCHAR(256) NOT NULL,
    body_hash VARCHAR(64) NOT NULL,
    subject BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (resource_group_id, request_key)
){clustered};
CREATE INDEX IF NOT EXISTS request_keys_subject ON request_keys (subject);

-- Unfinished chunked work: changes of many rows that are applied in several transactions, up to position.
CREATE TABLE IF NOT EXISTS chunked_work (
    id {id},
    kind VARCHAR(16) NOT NULL,
    subject BIGINT NOT NULL,
    job_id BIGINT,
    position BIGINT NOT NULL,
    args {longtext} NOT NULL,
    created_at BIGINT NOT NULL
){table};
CREATE INDEX IF NOT EXISTS chunked_work_job ON chunked_work (job_id, id);
CREATE INDEX IF NOT EXISTS chunked_work_subject ON chunked_work (subject, kind);

CREATE TABLE IF NOT EXISTS pools (
    name VARCHAR(256) NOT NULL PRIMARY KEY,
    task_order VARCHAR(4) NOT NULL CHECK (task_order IN ('fifo', 'lifo')),
    ageing BIGINT NOT NULL DEFAULT 0
){clustered};

-- ---------------------------------------------------------------- requests

CREATE TABLE IF NOT EXISTS task_requests (
    id {id},
    resource_group_id BIGINT NOT NULL,
    external_id VARCHAR(256),
    job_id BIGINT,
    task_graph_insertion_id INT,
    package_name VARCHAR(255),
    func_name VARCHAR(255),
    language VARCHAR(8) CHECK (language IN ('PYTHON', 'CPP', 'RUST')),
    name {longtext} NOT NULL,
    created_at BIGINT NOT NULL,
    authenticated VARCHAR(256) NOT NULL,
    user_name VARCHAR(256) NOT NULL,
    priority INT NOT NULL CHECK (priority BETWEEN 0 AND 255),
    service_account VARCHAR(128) NOT NULL,
    parent_task_id BIGINT,
    parent_run INT,
    root_task_id BIGINT,
    detached INT NOT NULL,
    retries INT NOT NULL,
    max_num_retries INT NOT NULL,
    max_num_instances INT NOT NULL,
    timeout BIGINT,
    lease BIGINT NOT NULL,
    deadline_at BIGINT NOT NULL,
    requires_policy VARCHAR(16) NOT NULL CHECK (requires_policy IN ('all-succeeded', 'all-resolved')),
    routing VARCHAR(64) NOT NULL,
    tags {longtext} NOT NULL,
    metadata {longtext} NOT NULL,
    -- of a task of a graph: its label, a digest of the node as it was sent, and the running task that has added it
    label VARCHAR(255),
    definition_hash VARCHAR(64),
    added_by BIGINT,
    -- the first slice; most tasks have no other
    num_slices INT NOT NULL,
    queue BIGINT NOT NULL,
    expiration BIGINT NOT NULL,
    wait_for_capacity INT NOT NULL,
    idempotent INT NOT NULL,
    properties_hash VARCHAR(64) NOT NULL,
    properties {longtext} NOT NULL
){table};
CREATE UNIQUE INDEX IF NOT EXISTS task_requests_external ON task_requests (resource_group_id, external_id);

-- only sqlite:
CREATE INDEX IF NOT EXISTS task_requests_parent ON task_requests (parent_task_id, id) WHERE parent_task_id IS NOT NULL;
-- only postgresql:
CREATE INDEX IF NOT EXISTS task_requests_parent ON task_requests (parent_task_id, id) WHERE parent_task_id IS NOT NULL;
-- only mariadb:
CREATE INDEX IF NOT EXISTS task_requests_parent ON task_requests (parent_task_id, id);

-- only sqlite:
CREATE UNIQUE INDEX IF NOT EXISTS task_requests_label ON task_requests (job_id, label) WHERE label IS NOT NULL;
-- only postgresql:
CREATE UNIQUE INDEX IF NOT EXISTS task_requests_label ON task_requests (job_id, label) WHERE label IS NOT NULL;
-- only mariadb:
CREATE UNIQUE INDEX IF NOT EXISTS task_requests_label ON task_requests (job_id, label);

CREATE {view} task_labels AS
    SELECT job_id, label, id AS task_id, definition_hash, added_by FROM task_requests WHERE label IS NOT NULL;

-- Slices from the second on.
CREATE TABLE IF NOT EXISTS further_slices (
    task_id BIGINT NOT NULL,
    slice INT NOT NULL,
    queue BIGINT NOT NULL,
    expiration BIGINT NOT NULL,
    wait_for_capacity INT NOT NULL,
    idempotent INT NOT NULL,
    properties_hash VARCHAR(64) NOT NULL,
    properties {longtext} NOT NULL,
    PRIMARY KEY (task_id, slice)
){clustered};

CREATE TABLE IF NOT EXISTS secret_bytes (
    task_id {id},
    secret_bytes {blob} NOT NULL
){table};

CREATE TABLE IF NOT EXISTS task_tags (
    tag VARCHAR(321) NOT NULL,
    task_id BIGINT NOT NULL,
    PRIMARY KEY (tag, task_id)
){clustered};

-- ---------------------------------------------------------------- queues

-- One row for each run that may be started; deleted when it is claimed. Every submit and claim writes this table.
CREATE TABLE IF NOT EXISTS task_to_run (
    task_id BIGINT NOT NULL,
    instance INT NOT NULL,
    queue BIGINT NOT NULL,
    task_rank BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    slice INT NOT NULL,
    wait_for_capacity INT NOT NULL,
    shared INT NOT NULL,
    avoid_bot VARCHAR(256),
    PRIMARY KEY (task_id, instance)
){clustered};
CREATE INDEX IF NOT EXISTS task_to_run_queue ON task_to_run (queue, task_rank, task_id);
CREATE INDEX IF NOT EXISTS task_to_run_expiry ON task_to_run (expires_at);

-- probe distinguishes sets of dimensions that have the same hash.
CREATE TABLE IF NOT EXISTS task_dimensions (
    id {id},
    hash VARCHAR(32) NOT NULL,
    probe INT NOT NULL,
    resource_group_id BIGINT NOT NULL,
    pool VARCHAR(256) NOT NULL,
    only_bot VARCHAR(256) NOT NULL,
    dimensions {longtext} NOT NULL,
    shared INT NOT NULL,
    created_at BIGINT NOT NULL,
    used_at BIGINT NOT NULL,
    UNIQUE (hash, resource_group_id, probe)
){table};
CREATE INDEX IF NOT EXISTS task_dimensions_pool ON task_dimensions (pool, only_bot, id);
CREATE INDEX IF NOT EXISTS task_dimensions_used ON task_dimensions (used_at);

CREATE TABLE IF NOT EXISTS bot_dimensions (
    dimension VARCHAR(321) NOT NULL,
    bot_id VARCHAR(256) NOT NULL,
    PRIMARY KEY (dimension, bot_id)
){clustered};
CREATE INDEX IF NOT EXISTS bot_dimensions_bot ON bot_dimensions (bot_id);

CREATE TABLE IF NOT EXISTS bot_task_dimensions (
    bot_id VARCHAR(256) NOT NULL,
    queue BIGINT NOT NULL,
    PRIMARY KEY (bot_id, queue)
){clustered};
CREATE INDEX IF NOT EXISTS bot_task_dimensions_queue ON bot_task_dimensions (queue, bot_id);

CREATE TABLE IF NOT EXISTS dimension_aggregation (
    dimension VARCHAR(64) NOT NULL,
    value VARCHAR(256) NOT NULL,
    num_bots INT NOT NULL,
    PRIMARY KEY (dimension, value)
){clustered};

-- ---------------------------------------------------------------- results

CREATE TABLE IF NOT EXISTS task_results (
    id {id},
    job_id BIGINT,
    resource_group_id BIGINT NOT NULL,
    state VARCHAR(12) NOT NULL CHECK (state IN ('WAITING', 'READY', 'RUNNING', 'SUCCEEDED', 'FAILED', 'TIMED_OUT',
        'BOT_DIED', 'EXPIRED', 'CANCELLED', 'KILLED', 'NO_RESOURCE', 'CLIENT_ERROR')),
    seq INT NOT NULL,
    generation INT NOT NULL,
    held INT NOT NULL,
    killing INT NOT NULL,
    forced INT NOT NULL,
    resolves_all INT NOT NULL,
    skips_request_lookup INT NOT NULL,
    num_parents INT NOT NULL,
    num_succeeded_parents INT NOT NULL,
    num_children INT NOT NULL,
    num_retries INT NOT NULL,
    num_reruns INT NOT NULL,
    run_number INT NOT NULL,
    instance_id INT,
    current_task_slice INT NOT NULL,
    bot_id VARCHAR(256),
    reason VARCHAR(32) NOT NULL,
    deduped_from BIGINT,
    deduped_run INT,
    cost_saved_usd DOUBLE PRECISION,
    ready_at BIGINT,
    started_at BIGINT,
    completed_at BIGINT,
    abandoned_at BIGINT,
    modified_at BIGINT NOT NULL,
    due_at BIGINT
){table};
-- What has a time to be looked at. Most rows have none any more.
-- only sqlite:
CREATE INDEX IF NOT EXISTS task_results_due ON task_results (due_at) WHERE due_at IS NOT NULL;
-- only postgresql:
CREATE INDEX IF NOT EXISTS task_results_due ON task_results (due_at) WHERE due_at IS NOT NULL;
-- only mariadb:
CREATE INDEX IF NOT EXISTS task_results_due ON task_results (due_at);
CREATE INDEX IF NOT EXISTS task_results_job ON task_results (job_id, id);

CREATE TABLE IF NOT EXISTS task_runs (
    task_id BIGINT NOT NULL,
    run INT NOT NULL,
    instance INT NOT NULL,
    generation INT NOT NULL,
    slice INT NOT NULL,
    bot_id VARCHAR(256) NOT NULL,
    session BIGINT NOT NULL,
    nonce BIGINT NOT NULL,
    token_hash VARCHAR(64) NOT NULL,
    state VARCHAR(12) NOT NULL,
    reason VARCHAR(32) NOT NULL,
    evidence {longtext},
    resource_group_id BIGINT NOT NULL,
    claimed_at BIGINT NOT NULL,
    started_at BIGINT,
    modified_at BIGINT NOT NULL,
    ended_at BIGINT,
    lease BIGINT NOT NULL,
    soft_at BIGINT,
    due_at BIGINT,
    exit_code BIGINT,
    duration DOUBLE PRECISION,
    cost_usd DOUBLE PRECISION NOT NULL,
    stdout_size BIGINT,
    stderr_size BIGINT,
    outputs_ref {longtext},
    bot_version VARCHAR(64) NOT NULL,
    bot_dimensions {longtext} NOT NULL,
    -- since when the bot was idle when it claimed the run
    idle_since BIGINT,
    PRIMARY KEY (task_id, run)
){clustered};
-- only sqlite:
CREATE INDEX IF NOT EXISTS task_runs_due ON task_runs (due_at, resource_group_id) WHERE due_at IS NOT NULL;
-- only postgresql:
CREATE INDEX IF NOT EXISTS task_runs_due ON task_runs (due_at, resource_group_id) WHERE due_at IS NOT NULL;
-- only mariadb:
CREATE INDEX IF NOT EXISTS task_runs_due ON task_runs (due_at, resource_group_id);
CREATE INDEX IF NOT EXISTS task_runs_bot ON task_runs (bot_id, due_at);

CREATE TABLE IF NOT EXISTS performance_stats (
    task_id BIGINT NOT NULL,
    run INT NOT NULL,
    bot_overhead DOUBLE PRECISION,
    cache_trim DOUBLE PRECISION,
    package_installation DOUBLE PRECISION,
    named_caches_install DOUBLE PRECISION,
    named_caches_uninstall DOUBLE PRECISION,
    cleanup DOUBLE PRECISION,
    isolated_download {longtext},
    isolated_upload {longtext},
    PRIMARY KEY (task_id, run)
){clustered};

-- Succeeded idempotent tasks by the digest of what they ran: an equal task takes their result. A table of its own, so
-- that other tasks pay for no index.
CREATE TABLE IF NOT EXISTS dedupe_sources (
    dedupe_key VARCHAR(64) NOT NULL,
    task_id BIGINT NOT NULL,
    run INT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (dedupe_key, task_id)
){clustered};
CREATE INDEX IF NOT EXISTS dedupe_sources_task ON dedupe_sources (task_id);

-- On SQLite the next two tables are in a second file with its own writer.
CREATE TABLE IF NOT EXISTS task_logs (
    task_id BIGINT NOT NULL,
    run INT NOT NULL,
    stream INT NOT NULL,
    length BIGINT NOT NULL,
    cut_from BIGINT,
    cut_to BIGINT,
    PRIMARY KEY (task_id, run, stream)
){clustered};

CREATE TABLE IF NOT EXISTS log_chunks (
    task_id BIGINT NOT NULL,
    run INT NOT NULL,
    stream INT NOT NULL,
    start_at BIGINT NOT NULL,
    content {blob} NOT NULL,
    PRIMARY KEY (task_id, run, stream, start_at)
){table};

-- ---------------------------------------------------------------- jobs

CREATE TABLE IF NOT EXISTS resource_groups (
    id {id},
    external_id VARCHAR(256) NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    deleting INT NOT NULL
){table};

CREATE TABLE IF NOT EXISTS jobs (
    id {id},
    resource_group_id BIGINT NOT NULL REFERENCES resource_groups (id),
    external_id VARCHAR(256),
    name {longtext} NOT NULL,
    routing VARCHAR(64) NOT NULL,
    creation_time BIGINT NOT NULL,
    state VARCHAR(16) NOT NULL CHECK (state IN ('RUNNING', 'PENDING_RETRY', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
    seq INT NOT NULL,
    max_num_retries INT NOT NULL,
    num_retries INT NOT NULL,
    failure_policy VARCHAR(16) NOT NULL CHECK (failure_policy IN ('continue', 'fail-fast')),
    staged INT NOT NULL,
    sealed_at BIGINT,
    blocked_by BIGINT,
    error {longtext},
    deadline_at BIGINT NOT NULL,
    ended_at BIGINT,
    due_at BIGINT,
    num_tasks INT NOT NULL,
    num_succeeded INT NOT NULL,
    num_failed INT NOT NULL,
    num_active INT NOT NULL,
    num_chunked_work INT NOT NULL,
    tags {longtext} NOT NULL,
    metadata {longtext} NOT NULL
){table};
CREATE UNIQUE INDEX IF NOT EXISTS jobs_external ON jobs (resource_group_id, external_id);
CREATE INDEX IF NOT EXISTS jobs_state ON jobs (state, id);
-- only sqlite:
CREATE INDEX IF NOT EXISTS jobs_due ON jobs (due_at) WHERE due_at IS NOT NULL;
-- only postgresql:
CREATE INDEX IF NOT EXISTS jobs_due ON jobs (due_at) WHERE due_at IS NOT NULL;
-- only mariadb:
CREATE INDEX IF NOT EXISTS jobs_due ON jobs (due_at);

CREATE TABLE IF NOT EXISTS task_edges (
    parent BIGINT NOT NULL,
    child BIGINT NOT NULL,
    PRIMARY KEY (parent, child)
){clustered};
CREATE INDEX IF NOT EXISTS task_edges_child ON task_edges (child, parent);

CREATE TABLE IF NOT EXISTS completed_task_edges (
    parent BIGINT NOT NULL,
    child BIGINT NOT NULL,
    run INT,
    PRIMARY KEY (parent, child)
){clustered};
-- Tasks of a job without parents, and without children.
CREATE {view} input_tasks AS
    SELECT t.job_id, t.id AS task_id FROM task_results t
     WHERE t.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM task_edges e WHERE e.child = t.id);

CREATE {view} output_tasks AS
    SELECT t.job_id, t.id AS task_id FROM task_results t
     WHERE t.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM task_edges e WHERE e.parent = t.id);

-- ---------------------------------------------------------------- data

CREATE TABLE IF NOT EXISTS "values" (
    id {id},
    owner_job_id BIGINT NOT NULL,
    type {longtext} NOT NULL,
    payload {blob},
    digest VARCHAR(64),
    size BIGINT
){table};
CREATE INDEX IF NOT EXISTS values_job ON "values" (owner_job_id, id);

CREATE TABLE IF NOT EXISTS shared_values (
    id {id},
    -- the id that the value had as an output of its job; 0 for one that a client has stored
    task_graph_data_id BIGINT NOT NULL,
    type {longtext} NOT NULL,
    payload {blob},
    digest VARCHAR(64),
    size BIGINT NOT NULL,
    created_at BIGINT NOT NULL
){table};

CREATE TABLE IF NOT EXISTS resource_group_to_shared_value_ref (
    id BIGINT NOT NULL,
    resource_group_id BIGINT NOT NULL,
    PRIMARY KEY (id, resource_group_id)
){clustered};
CREATE INDEX IF NOT EXISTS resource_group_to_shared_value_ref_group ON resource_group_to_shared_value_ref (resource_group_id, id);

CREATE TABLE IF NOT EXISTS job_to_shared_value_ref (
    id BIGINT NOT NULL,
    job_id BIGINT NOT NULL,
    PRIMARY KEY (id, job_id)
){clustered};
CREATE INDEX IF NOT EXISTS job_to_shared_value_ref_job ON job_to_shared_value_ref (job_id, id);

CREATE TABLE IF NOT EXISTS shared_value_localities (
    id BIGINT NOT NULL,
    address VARCHAR(40) NOT NULL,
    PRIMARY KEY (id, address)
){clustered};

CREATE TABLE IF NOT EXISTS task_inputs (
    task_id BIGINT NOT NULL,
    position INT NOT NULL,
    type VARCHAR(12) NOT NULL CHECK (type IN ('VALUE', 'SHARED_VALUE')),
    value_id BIGINT,
    shared_value_id BIGINT,
    PRIMARY KEY (task_id, position)
){clustered};

CREATE TABLE IF NOT EXISTS task_outputs (
    task_id BIGINT NOT NULL,
    position INT NOT NULL,
    type VARCHAR(12) NOT NULL CHECK (type IN ('VALUE', 'SHARED_VALUE')),
    value_id BIGINT,
    shared_value_id BIGINT,
    PRIMARY KEY (task_id, position)
){clustered};

-- ---------------------------------------------------------------- fleet

CREATE TABLE IF NOT EXISTS bots (
    id VARCHAR(256) NOT NULL PRIMARY KEY,
    session BIGINT NOT NULL,
    nonce BIGINT NOT NULL,
    address VARCHAR(40) NOT NULL,
    boot_id VARCHAR(64) NOT NULL,
    version VARCHAR(64) NOT NULL,
    authenticated VARCHAR(256) NOT NULL,
    dimensions {longtext} NOT NULL,
    state {longtext} NOT NULL,
    alive INT NOT NULL,
    serving INT NOT NULL,
    draining INT NOT NULL,
    quarantined {longtext},
    maintenance {longtext},
    first_seen_at BIGINT NOT NULL,
    heartbeat BIGINT NOT NULL,
    matched_at BIGINT NOT NULL,
    num_quick_failures INT NOT NULL,
    quick_failure_at BIGINT,
    due_at BIGINT,
    -- since when the bot is idle
    idle_at BIGINT
){table};
CREATE INDEX IF NOT EXISTS bots_due ON bots (due_at);

CREATE TABLE IF NOT EXISTS bot_settings (
    bot_id VARCHAR(256) NOT NULL PRIMARY KEY,
    quarantined {longtext},
    ends_session BIGINT
){table};

CREATE TABLE IF NOT EXISTS bot_events (
    bot_id VARCHAR(256) NOT NULL,
    id BIGINT NOT NULL,
    at BIGINT NOT NULL,
    kind VARCHAR(32) NOT NULL,
    message {longtext} NOT NULL,
    task_id BIGINT,
    run INT,
    dimensions {longtext},
    state {longtext},
    version VARCHAR(64),
    PRIMARY KEY (bot_id, id)
){clustered};
CREATE INDEX IF NOT EXISTS bot_events_at ON bot_events (at);

CREATE TABLE IF NOT EXISTS releases (
    digest VARCHAR(64) NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL,
    active INT NOT NULL,
    canary_percent INT NOT NULL,
    content {blob} NOT NULL
){clustered};

-- Every version of every file of the configuration folder that has been active.
-- Kind "folder" is the folder itself: its files, each with the position of its version.
CREATE TABLE IF NOT EXISTS config_versions (
    kind VARCHAR(128) NOT NULL,
    position BIGINT NOT NULL,
    version VARCHAR(64) NOT NULL,
    created_at BIGINT NOT NULL,
    who VARCHAR(256) NOT NULL,
    content {longtext} NOT NULL,
    PRIMARY KEY (kind, position)
){clustered};

-- The state of a bot release.
CREATE TABLE IF NOT EXISTS release_states (
    digest VARCHAR(64) NOT NULL PRIMARY KEY,
    state VARCHAR(8) NOT NULL CHECK (state IN ('new', 'canary', 'good', 'bad')),
    offered_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    who VARCHAR(256) NOT NULL,
    why {longtext} NOT NULL
){clustered};

-- Which release each running server backs. A row that is no longer renewed belongs to a stopped server.
CREATE TABLE IF NOT EXISTS release_backers (
    server_id {id},
    digest VARCHAR(64) NOT NULL,
    renewed_at BIGINT NOT NULL
){table};

-- Bots that rejected a release after their self-test.
CREATE TABLE IF NOT EXISTS release_failures (
    digest VARCHAR(64) NOT NULL,
    bot_id VARCHAR(256) NOT NULL,
    failed_at BIGINT NOT NULL,
    PRIMARY KEY (digest, bot_id)
){clustered};

-- The 95th percentile of the size of a named cache on bots of this pool and operating system.
CREATE TABLE IF NOT EXISTS cache_sizes (
    pool VARCHAR(256) NOT NULL,
    os VARCHAR(64) NOT NULL,
    name VARCHAR(128) NOT NULL,
    size BIGINT NOT NULL,
    measured_at BIGINT NOT NULL,
    PRIMARY KEY (pool, os, name)
){clustered};

-- ---------------------------------------------------------------- events

-- position is NULL until the sequencer has processed the committed row.
CREATE TABLE IF NOT EXISTS outbox (
    subject BIGINT NOT NULL,
    seq INT NOT NULL,
    position BIGINT,
    at BIGINT NOT NULL,
    kind VARCHAR(8) NOT NULL,
    state VARCHAR(16) NOT NULL,
    body {longtext} NOT NULL,
    PRIMARY KEY (subject, seq)
){clustered};
CREATE INDEX IF NOT EXISTS outbox_position ON outbox (position, subject, seq);

CREATE TABLE IF NOT EXISTS sinks (
    name VARCHAR(128) NOT NULL PRIMARY KEY,
    position BIGINT NOT NULL,
    holder BIGINT,
    held_until BIGINT
){clustered};

-- ---------------------------------------------------------------- servers of the past

-- When a server of another version than the last one started.
CREATE TABLE IF NOT EXISTS server_versions (
    at BIGINT NOT NULL PRIMARY KEY,
    version VARCHAR(64) NOT NULL
){clustered};

-- More columns of bot_events.
CREATE TABLE IF NOT EXISTS bot_event_facts (
    bot_id VARCHAR(256) NOT NULL,
    id BIGINT NOT NULL,
    address VARCHAR(40) NOT NULL,
    authenticated VARCHAR(256) NOT NULL,
    quarantined {longtext},
    maintenance {longtext},
    PRIMARY KEY (bot_id, id)
){clustered};

-- Rows of these tables are updated and deleted soon: without these settings dead rows slow every claim and report.
-- only postgresql:
ALTER TABLE task_to_run SET (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
-- only postgresql:
ALTER TABLE task_results SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- only postgresql:
ALTER TABLE task_runs SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- only postgresql:
ALTER TABLE bots SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
-- only postgresql:
ALTER TABLE jobs SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
