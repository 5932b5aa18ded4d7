//! Options from a TOML file: they take the place of options that the command line leaves out.
//!
//! The options of the file become command-line options and go through the same parser, so that both
//! know the same names and values, and a new option can stand in a file without a word here.

use std::{ffi::OsString, path::Path};

use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, parser::ValueSource};
use toml::{Table, Value};

use crate::{arguments::Arguments, foreign::wrong_line};
use onefold_backend::settings_file;
use onefold_console::failure::{Failure, sentence_of};

/// Bytes of a file at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Options that only make sense on the command line.
const NOT_IN_FILES: [&str; 3] = ["config", "help", "version"];

/// The arguments of the command line `given` and of the file that it names.
pub(crate) fn read(given: Vec<OsString>) -> Result<Arguments, Failure> {
    let command = Arguments::command();
    let mut matches = command.clone().try_get_matches_from(&given).map_err(wrong_line)?;
    if let Some(path) = matches.get_one::<std::path::PathBuf>("config") {
        let mut built = command.clone();
        built.build();
        let file = File { path, command: &built };
        let options = file.options(&file.load()?, &matches)?;
        matches = command
            .try_get_matches_from(with_options(given, options))
            .map_err(|error| file.wrong(&sentence_of(&error)))?;
    }
    if asks_for_json(&matches) {
        onefold_console::progress::as_json();
    }
    Ok(Arguments::from_arg_matches(&matches)?)
}

/// True when the verb was asked for JSON.
fn asks_for_json(mut matches: &ArgMatches) -> bool {
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    matches.try_get_one::<bool>("json").is_ok_and(|json| json.is_some_and(|json| *json))
}

/// The command line with more options: at its end, or before a `--`, after which there are no
/// options.
fn with_options(mut given: Vec<OsString>, options: Vec<OsString>) -> Vec<OsString> {
    let end = given.iter().position(|word| word == "--").unwrap_or(given.len());
    given.splice(end..end, options);
    given
}

struct File<'a> {
    path: &'a Path,
    command: &'a Command,
}

impl File<'_> {
    fn wrong(&self, what: &str) -> Failure {
        Failure::usage(format!("configuration {}: {what}", self.path.display()))
    }

    fn load(&self) -> Result<Table, Failure> {
        let text = settings_file(self.path, FILE_BYTES_MAX)
            .map_err(|error| self.wrong(&error.to_string()))?;
        text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            self.wrong(&format!("line {line}: {}", error.message()))
        })
    }

    /// The options for the verb of `matches` that the command line leaves out.
    fn options(&self, table: &Table, matches: &ArgMatches) -> Result<Vec<OsString>, Failure> {
        self.check(table, self.command, "")?;
        let mut options = Vec::new();
        let (mut table, mut command, mut matches) = (table, self.command, matches);
        loop {
            for option in command.get_arguments() {
                let Some(value) = option.get_long().and_then(|name| table.get(name)) else {
                    continue;
                };
                if matches.value_source(option.get_id().as_str()) != Some(ValueSource::CommandLine)
                {
                    options.extend(self.words(option, value)?);
                }
            }
            let Some((name, inner)) = matches.subcommand() else { break };
            let (Some(Value::Table(section)), Some(verb)) =
                (table.get(name), command.find_subcommand(name))
            else {
                break;
            };
            (table, command, matches) = (section, verb, inner);
        }
        Ok(options)
    }

    /// Every section must be a verb and every key an option, also those that are not asked for now:
    /// a slip of the pen is found at once.
    fn check(&self, table: &Table, command: &Command, section: &str) -> Result<(), Failure> {
        for (key, value) in table {
            let verb = command
                .get_subcommands()
                .find(|verb| verb.get_name() == key && !verb.is_hide_set());
            let option = command.get_arguments().any(|option| {
                option.get_long() == Some(key) && !NOT_IN_FILES.contains(&key.as_str())
            });
            let place =
                if section.is_empty() { String::new() } else { format!(" in section [{section}]") };
            match (verb, value) {
                (Some(verb), Value::Table(inner)) => {
                    let name =
                        if section.is_empty() { key.clone() } else { format!("{section}.{key}") };
                    self.check(inner, verb, &name)?;
                }
                (None, _) if option => {}
                (None, Value::Table(_)) => {
                    return Err(
                        self.wrong(&format!("there is no verb for the section [{key}]{place}"))
                    );
                }
                _ => return Err(self.wrong(&format!("unknown key '{key}'{place}"))),
            }
        }
        Ok(())
    }

    /// A key and its value as words of a command line.
    fn words(&self, option: &Arg, value: &Value) -> Result<Vec<OsString>, Failure> {
        let name = option.get_long().unwrap_or_default();
        let takes_value = option.get_action().takes_values();
        let word = |value: String| OsString::from(format!("--{name}={value}"));
        match value {
            Value::Boolean(true) if !takes_value => Ok(vec![format!("--{name}").into()]),
            Value::Boolean(false) if !takes_value => Ok(Vec::new()),
            _ if !takes_value => Err(self.wrong(&format!("'{name}' is true or false"))),
            Value::String(text) => Ok(vec![word(text.clone())]),
            Value::Integer(number) => Ok(vec![word(number.to_string())]),
            Value::Array(values) => {
                let lists: Result<Vec<_>, Failure> = values
                    .iter()
                    .map(|value| match value {
                        Value::Array(_) => Err(self.wrong(&format!("'{name}' is a list of lists"))),
                        value => self.words(option, value),
                    })
                    .collect();
                Ok(lists?.concat())
            }
            _ => Err(self.wrong(&format!("'{name}' needs a text or a number"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Verb;

    fn with_file(text: &str, line: &str) -> Result<Arguments, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        words.insert(1, format!("--config={}", file.path().display()).into());
        read(words).map_err(|failure| format!("{failure:?}"))
    }

    fn serve_options(text: &str, line: &str) -> crate::verbs::serve::Options {
        match with_file(text, line).unwrap().verb {
            Verb::Serve(options) => options,
            verb => panic!("{verb:?}"),
        }
    }

    #[test]
    fn a_file_gives_what_the_command_line_leaves_out() {
        let text = "log = 'debug'\n[serve]\nmemory = '64M'\nnbd = ['unix:/a', \
                    'tcp:127.0.0.1:1']\ninsecure = true\nmax-connections = 7\n";
        let options = serve_options(text, "onefold serve store");
        assert_eq!(options.memory.0, 64 << 20);
        assert_eq!(options.nbd.len(), 2);
        assert!(options.insecure);
        assert_eq!(options.max_connections, Some(7));
        let options = serve_options(text, "onefold serve --nbd unix:/b --memory=32M -- store");
        assert_eq!(options.memory.0, 32 << 20);
        assert_eq!(options.nbd.len(), 1);
        assert_eq!(options.max_connections, Some(7));
        assert_eq!(with_file(text, "onefold serve store").unwrap().log.as_deref(), Some("debug"));
        assert_eq!(
            with_file(text, "onefold status --log warn store").unwrap().log.as_deref(),
            Some("warn")
        );
    }

    #[test]
    fn verbs_of_verbs_have_sections_too() {
        let arguments =
            with_file("[volume.create]\nsize = 4096\n", "onefold volume create store name")
                .unwrap();
        assert!(format!("{arguments:?}").contains("Size(4096)"));
    }

    #[test]
    fn a_slip_of_the_pen_is_named() {
        for (text, says) in [
            ("[serve]\nmemmory = '1G'\n", "unknown key 'memmory' in section [serve]"),
            ("[server]\nmemory = '1G'\n", "no verb for the section [server]"),
            ("memory = '1G'\n", "unknown key 'memory'"),
            ("[volume.destroy]\n", "no verb for the section [destroy] in section [volume]"),
            ("[serve]\nhelp = true\n", "unknown key 'help' in section [serve]"),
            ("config = 'other'\n", "unknown key 'config'"),
            ("[serve]\nmemory = 'much'\n", "invalid value 'much' for '--memory"),
            ("[serve]\nmemory = 1.5\n", "'memory' needs a text or a number"),
            ("[serve]\ninsecure = 'yes'\n", "'insecure' is true or false"),
            ("[serve]\nmemory = ['1G', '2G']\n", "cannot be used multiple times"),
            ("serve = 1\n", "unknown key 'serve'"),
            ("[serve\n", "line 1: "),
            // Of another verb, and yet.
            ("[create.block]\nsice = 1\n", "unknown key 'sice' in section [create.block]"),
        ] {
            let failure = with_file(text, "onefold serve store").unwrap_err();
            assert!(failure.contains(says), "{text}: {failure}");
        }
    }
}
