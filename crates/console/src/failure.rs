//! The sentence that a person reads when something fails, and an exit status for scripts.

use std::{borrow::Cow, fmt::Display, io::Write, process::ExitCode};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use onefold_core::{Error, letters::is_order};

/// Exit status of a verb that failed.
const FAILED: u8 = 1;

/// Exit status of a command line that makes no sense.
const USAGE: u8 = 2;

/// Exit status of a verb that did its work but for a part that could not be read.
const IN_PART: u8 = 3;

/// Most bytes of a sentence that are said: a name may be long, and the journal makes several entries of a
/// line of more than 48 KiB.
const SAID_BYTES: usize = 8 << 10;

/// Why the command ends before its verb is done.
#[derive(Debug)]
pub enum Failure {
    /// A sentence, and the exit status.
    Sentence(String, u8),
    /// Help or the version was asked for; its text is all there is to do.
    Text(clap::Error),
}

impl Failure {
    /// A verb that failed.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure::Sentence(sentence.into(), FAILED)
    }

    /// A verb that did its work but for what could not be read.
    pub fn in_part(sentence: impl Into<String>) -> Failure {
        Failure::Sentence(sentence.into(), IN_PART)
    }

    /// A command line that makes no sense.
    pub fn usage(sentence: impl Into<String>) -> Failure {
        Failure::Sentence(sentence.into(), USAGE)
    }

    /// Says more behind it.
    #[must_use]
    pub fn and(self, more: impl Display) -> Failure {
        match self {
            Failure::Sentence(sentence, status) => {
                Failure::Sentence(format!("{sentence}; {more}"), status)
            }
            text @ Failure::Text(_) => text,
        }
    }

    /// Tells it as this command, and gives the exit status.
    pub fn tell(self, command: &str) -> ExitCode {
        match self {
            Failure::Sentence(sentence, status) => {
                // There is nowhere else to say it.
                let _ = writeln!(std::io::stderr(), "{command}: {}", one_line(&sentence));
                ExitCode::from(status)
            }
            Failure::Text(text) => {
                let _ = text.print();
                ExitCode::SUCCESS
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Failure {
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Failure::Text(error),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
                let words = match words_after(&error) {
                    words if words.is_empty() => String::new(),
                    words => format!(" ({})", words.join(", ")),
                };
                Failure::usage(format!("say what to do{words}; --help in its place tells more"))
            }
            ErrorKind::MissingRequiredArgument => Failure::usage(missing(&error)),
            ErrorKind::InvalidSubcommand
                if error.get(ContextKind::SuggestedSubcommand).is_none() =>
            {
                let sentence = sentence_of(&error);
                Failure::usage(format!("{sentence}; --help in its place lists what there is"))
            }
            _ => Failure::usage(sentence_of(&error)),
        }
    }
}

/// Says which words are missing, and how the whole line is typed.
fn missing(error: &clap::Error) -> String {
    let plain = |text: &str| text.replace(['<', '>'], "").replace("...", "…");
    let names: Vec<String> = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(names)) => names.iter().map(|name| plain(name)).collect(),
        _ => Vec::new(),
    };
    let text = error.render().to_string();
    let Some((_, usage)) = text.split_once("Usage: ") else { return sentence_of(error) };
    let usage = plain(usage.lines().next().unwrap_or_default());
    let (last, others) = match names.split_last() {
        Some((last, [])) => (last, String::new()),
        Some((last, others)) => (last, format!("{} and ", others.join(", "))),
        None => return sentence_of(error),
    };
    let are = if others.is_empty() { "is" } else { "are" };
    format!("{others}{last} {are} missing: `{usage}`; --help in its place tells more")
}

/// The words that could stand where one is missing: the parser gives them, or it gives the help,
/// which lists them.
fn words_after(error: &clap::Error) -> Vec<String> {
    if let Some(ContextValue::Strings(words)) = error.get(ContextKind::ValidSubcommand) {
        return words.clone();
    }
    let help = error.render().to_string();
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let entry = |line: &str| {
        let entry = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?;
        entry.split_whitespace().next().map(str::to_owned)
    };
    list.take_while(|line| !line.is_empty()).filter_map(entry).collect()
}

/// The message of the parser without its usage lines, and without the tip to put `--` before an option that
/// there is not: nobody who types one means a file of that name.
pub fn sentence_of(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let is_tip = |line: &&str| line.trim_start().starts_with("tip: to pass '");
    let text: String = text.lines().filter(|line| !is_tip(line)).flat_map(|l| [l, "\n"]).collect();
    let mut parts: Vec<&str> = Vec::new();
    for paragraph in text.split("\n\n").map(str::trim) {
        if !paragraph.is_empty()
            && !paragraph.starts_with("Usage:")
            && !paragraph.starts_with("For more information")
        {
            parts.push(paragraph.trim_start_matches("error: "));
        }
    }
    one_line(&parts.join("; "))
}

/// A sentence on one line, whatever it quotes.
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    shortened(&line).chars().map(|c| if is_order(c) { '\u{fffd}' } else { c }).collect()
}

/// A text without its middle, when it is very long.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= SAID_BYTES {
        return Cow::Borrowed(text);
    }
    let is_border = |at: &usize| text.is_char_boundary(*at);
    let end = (0..=SAID_BYTES / 2).rev().find(is_border).unwrap_or(0);
    let rest = (text.len() - SAID_BYTES / 2..).find(is_border).unwrap_or(text.len());
    Cow::Owned(format!("{} … {}", &text[..end], &text[rest..]))
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn an_option_that_there_is_not_is_no_name_of_a_file() {
        let files = clap::Arg::new("files").num_args(0..);
        let error =
            Command::new("ls").arg(files).try_get_matches_from(["ls", "--target"]).unwrap_err();
        assert!(error.render().to_string().contains("-- --target"), "the parser has no such tip");
        assert_eq!(sentence_of(&error), "unexpected argument '--target' found");
    }

    #[test]
    fn missing_arguments_are_named_as_they_are_typed() {
        let store = || clap::Arg::new("store").value_name("ARCHIVE").required(true);
        let paths = clap::Arg::new("paths").value_name("PATHS").required(true).num_args(1..);
        let to = clap::Arg::new("to").short('C').long("directory").value_name("DIR").required(true);
        for (verb, says) in [
            (Command::new("ls").arg(store()), "ARCHIVE is missing: `ls ARCHIVE`"),
            (
                Command::new("restore").arg(store()).arg(paths).arg(to),
                "--directory DIR, ARCHIVE and PATHS… are missing: \
                 `restore --directory DIR ARCHIVE PATHS…`",
            ),
        ] {
            let name = verb.get_name().to_owned();
            let failure = Failure::from(verb.try_get_matches_from([name]).unwrap_err());
            let Failure::Sentence(sentence, USAGE) = failure else { panic!("{failure:?}") };
            assert_eq!(sentence, format!("{says}; --help in its place tells more"));
        }
    }

    #[test]
    fn a_missing_word_is_asked_for_by_those_that_there_are() {
        let engines = [("block", "Makes one\n\nwith  blocks"), ("archive", "Makes another")];
        let verb = Command::new("create").subcommand_required(true).disable_help_subcommand(true);
        let verb =
            verb.subcommands(engines.map(|(name, long)| Command::new(name).long_about(long)));
        for verb in [verb.clone(), verb.arg_required_else_help(true)] {
            let error = verb.try_get_matches_from(["create"]).unwrap_err();
            let Failure::Sentence(sentence, status) = Failure::from(error) else {
                panic!("no sentence")
            };
            assert_eq!(
                (sentence.as_str(), status),
                ("say what to do (block, archive); --help in its place tells more", USAGE)
            );
        }
    }
}
