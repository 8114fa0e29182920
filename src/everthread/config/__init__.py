"""The configuration: one `config.yaml` in the Everthread home, every key optional.

Unknown keys and values out of range are refused at load, with the key's full path, the value and the allowed values;
nothing is clamped. Secrets come from the environment: the file names the variable (`api_key_env`).
"""

from everthread.config.loading import (
    Config,
    config_path,
    home_directory,
    load_config,
    parse_config,
)

__all__ = ["Config", "config_path", "home_directory", "load_config", "parse_config"]
