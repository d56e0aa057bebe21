-- oldest code: 1

-- What a bot-bootstrap token may be used for. NULL stands for no limit.
ALTER TABLE tokens {add_column} bot_pool VARCHAR(256);
ALTER TABLE tokens {add_column} bot_group VARCHAR(256);
ALTER TABLE tokens {add_column} bot_ids VARCHAR(256);
ALTER TABLE tokens {add_column} uses_left INT;

-- Only credentials of a bot's present epoch are valid; those of bots that were introduced before have epoch 0.
ALTER TABLE bots {add_column} epoch BIGINT NOT NULL DEFAULT 0;
-- The token that introduced the bot; 0 for none.
ALTER TABLE bots {add_column} introducer BIGINT NOT NULL DEFAULT 0;
-- The pool that this token is bound to.
ALTER TABLE bots {add_column} bound_pool VARCHAR(256);
