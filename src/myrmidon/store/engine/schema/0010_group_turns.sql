-- oldest code: 1
-- Which resource group got a task last, so that groups with equally many running tasks take turns.
CREATE TABLE IF NOT EXISTS group_turns (
    resource_group_id {id},
    turn BIGINT NOT NULL
){table};
