-- oldest code: 1
-- Typed functions: what a bot runs, the values that they gather, and what they report.

-- code is the digest of the zip with the function's modules; NULL for a package that is installed on the bot.
ALTER TABLE task_requests {add_column} code VARCHAR(64);
ALTER TABLE task_requests {add_column} signature {longtext};
ALTER TABLE task_requests {add_column} memory_mb INT;
-- How many rows the task has in task_inputs and task_outputs. Commands may have some too.
ALTER TABLE task_requests {add_column} num_inputs INT NOT NULL DEFAULT 0;
ALTER TABLE task_requests {add_column} num_outputs INT NOT NULL DEFAULT 0;

-- The exception of a function as JSON, and how far a run has come, from 0 to 1.
ALTER TABLE task_runs {add_column} error {longtext};
ALTER TABLE task_runs {add_column} progress DOUBLE PRECISION;

-- NULL for an input that is one value. Otherwise that value is only the shape, in which the parts are placed.
ALTER TABLE task_inputs {add_column} num_parts INT;

CREATE TABLE IF NOT EXISTS task_input_parts (
    task_id BIGINT NOT NULL,
    position INT NOT NULL,
    part INT NOT NULL,
    value_id BIGINT NOT NULL,
    shared_value_id BIGINT,
    PRIMARY KEY (task_id, position, part)
){clustered};

-- The outputs of task_id are written by the task delegate; both tasks name the same values.
CREATE TABLE IF NOT EXISTS task_delegates (
    task_id BIGINT NOT NULL,
    delegate BIGINT NOT NULL,
    PRIMARY KEY (task_id, delegate)
){clustered};
CREATE INDEX IF NOT EXISTS task_delegates_delegate ON task_delegates (delegate);

-- The code that tasks of a job need. Their bots get the code in runs_as instead, if a rerun has set it.
CREATE TABLE IF NOT EXISTS job_codes (
    job_id BIGINT NOT NULL,
    code VARCHAR(64) NOT NULL,
    runs_as VARCHAR(64),
    PRIMARY KEY (job_id, code)
){clustered};
CREATE INDEX IF NOT EXISTS job_codes_code ON job_codes (code);
-- only sqlite:
CREATE INDEX IF NOT EXISTS job_codes_runs_as ON job_codes (runs_as) WHERE runs_as IS NOT NULL;
-- only postgresql:
CREATE INDEX IF NOT EXISTS job_codes_runs_as ON job_codes (runs_as) WHERE runs_as IS NOT NULL;
-- only mariadb:
CREATE INDEX IF NOT EXISTS job_codes_runs_as ON job_codes (runs_as);
