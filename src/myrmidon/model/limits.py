"""The limits that requests are checked against, with their defaults."""

from typing import Final

from msgspec import Struct

from myrmidon.wire.shared_values import INLINE_BYTES


class Limits(Struct, frozen=True, kw_only=True):
    """Every limit and default of a request. ``*_s`` are seconds, ``*_chars`` count code points."""

    # a task
    name_chars: int = 1024
    priority_default: int = 100
    priority_max: int = 255
    tags: int = 256
    tag_chars: int = 321
    user_chars: int = 256
    service_account_chars: int = 128
    external_id_chars: int = 128
    routing_chars: int = 10
    metadata_keys: int = 64
    metadata_key_chars: int = 255
    metadata_value_chars: int = 32_768
    slices: int = 8
    secret_bytes: int = 20_480
    stdin_bytes: int = 1_048_576
    retries_default: int = 1
    retries_max: int = 100
    reruns_max: int = 100
    instances_max: int = 16
    lease_default_s: int = 300
    lease_min_s: int = 30
    lease_max_s: int = 3_600
    deadline_max_s: int = 2_592_000
    # a slice and its properties
    expiration_default_s: int = 86_400
    expiration_min_s: int = 1
    expiration_max_s: int = 604_800
    command_args: int = 32_768
    arg_chars: int = 131_072
    cwd_chars: int = 1024
    dimension_keys: int = 32
    dimension_values: int = 16
    dimension_key_chars: int = 64
    dimension_value_chars: int = 256
    dimension_alternatives: int = 8
    env_keys: int = 64
    env_key_chars: int = 64
    env_value_chars: int = 1024
    env_prefix_paths: int = 64
    env_prefix_chars: int = 1024
    caches: int = 32
    cache_name_chars: int = 128
    cache_path_chars: int = 256
    namespace_chars: int = 128
    output_paths: int = 4096
    output_path_chars: int = 512
    execution_timeout_default_s: int = 3_600
    execution_timeout_min_s: int = 1
    function_timeout_min_s: float = 0.1
    soft_timeout_min_s: float = 0.1
    execution_timeout_max_s: int = 604_800
    grace_period_default_s: int = 30
    grace_period_max_s: int = 3_600
    # a function and its values
    function_name_chars: int = 255
    signature_chars: int = 16_384
    memory_max_mb: int = 16_777_216
    inputs: int = 10_000
    outputs: int = 1_024
    type_chars: int = 1024
    value_inline_bytes: int = INLINE_BYTES
    value_stored_bytes: int = 67_108_864
    # a job
    label_chars: int = 255
    nodes: int = 100_000
    parents: int = 10_000
    job_codes: int = 1_000
    job_retries_default: int = 0
    job_retries_max: int = 100
    routing_key_bytes: int = 255
    routing_words_bytes: int = 107  # a task id, a run number and four words of 20 about the bot, with dots
    deployment: str = "myrmidon"


DEFAULT_LIMITS: Final = Limits()
