//! The command line.

use clap::Parser;

use crate::verbs::Verb;

/// Compares schemes of deduplication on your workload, in virtual time
///
/// The real engine runs over a modelled device, whose time passes without anybody waiting. The
/// command counts writes, flushes and the time that requests would take. The same command gives the
/// same figures again.
#[derive(Debug, Parser)]
#[command(name = "onefold-lab", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  \
                  onefold-lab record --from nbd+unix:///vm1?socket=/run/onefold.sock --listen \
                  unix:/run/recorder.sock --out disk.dtrace.zst\n  \
                  onefold-lab replay disk.dtrace.zst --json\n  \
                  onefold-lab replay disk.dtrace.zst --persistence strong --device nvme-plp")]
pub(crate) struct Arguments {
    /// Level of the log on standard error: off, error, warn, info, debug or trace, also by module
    /// [default: RUST_LOG, or info]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log: Option<String>,

    /// The verb.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Every verb that does something, verbs of verbs included.
    fn verbs(command: &clap::Command, path: &str, all: &mut Vec<(String, clap::Command)>) {
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let path = format!("{path} {}", verb.get_name());
            all.push((path.clone(), verb.clone()));
            verbs(verb, &path, all);
        }
    }

    fn all() -> Vec<(String, clap::Command)> {
        let mut all = vec![("onefold-lab".to_owned(), Arguments::command())];
        verbs(&Arguments::command(), "onefold-lab", &mut all);
        all
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
        assert!(all().len() > 10);
    }

    #[test]
    fn every_verb_shows_examples_that_can_be_typed() {
        for (path, verb) in all() {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
            let examples: Vec<&str> =
                lines.filter(|line| line.starts_with("onefold-lab")).collect();
            assert!(!examples.is_empty(), "{path} has no example");
            for example in examples {
                assert!(example.starts_with(&path), "{path}: {example}");
                Arguments::try_parse_from(example.split_whitespace())
                    .unwrap_or_else(|e| panic!("{example}: {e}"));
            }
        }
    }

    #[test]
    fn every_option_is_explained_and_every_result_is_there_as_json() {
        for (path, verb) in all() {
            assert!(verb.get_about().is_some(), "{path}");
            for option in verb.get_arguments() {
                assert!(option.get_help().is_some(), "{path}: {}", option.get_id());
            }
            let ends = verb.get_subcommands().next().is_none() && !path.ends_with(" record");
            let has = verb.get_arguments().any(|option| option.get_id() == "json");
            assert!(!ends || has, "{path} has no --json");
        }
    }
}
