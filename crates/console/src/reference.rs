//! The reference of a command in Markdown, from the same definitions as its `--help`.

use clap::{Arg, Command, Id};

/// Lowest level of a heading: verbs of verbs.
const LEVELS: usize = 3;

/// The page: the command with the options of every verb, then each verb with its own. Hidden verbs
/// and options are left out.
pub fn markdown(command: Command) -> String {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let name = command.get_name().to_owned();
    let mut page = format!("# The command `{name}`\n");
    page += &format!(
        "\n`{name} VERB --help` tells the same. This page is written by `cargo xtask docs`.\n"
    );
    section(&mut page, &mut command, &name, &[]);
    page
}

/// Writes the purpose of a command, its usage, its options but for `inherited` ones, its examples,
/// and its verbs.
fn section(page: &mut String, command: &mut Command, path: &str, inherited: &[Id]) {
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        for paragraph in about.to_string().split("\n\n") {
            *page += &format!("\n{}\n", sentence(&prose(paragraph)));
        }
    }
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    *page += &format!("\n```text\n{usage}\n```\n");
    let own = |arg: &&Arg| {
        !arg.is_hide_set()
            && !["help", "version"].contains(&arg.get_id().as_str())
            && !inherited.contains(arg.get_id())
    };
    let rows: String = command.get_arguments().filter(own).map(row).collect();
    if !rows.is_empty() {
        *page += &format!("\n| | meaning |\n|---|---|\n{rows}");
    }
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    if !examples.is_empty() {
        *page += &format!("\n```text\n{}\n```\n", examples.join("\n"));
    }
    let known: Vec<Id> = command.get_arguments().map(|arg| arg.get_id().clone()).collect();
    for verb in command.get_subcommands_mut().filter(|verb| !verb.is_hide_set()) {
        let path = format!("{path} {}", verb.get_name());
        let level = path.split(' ').count().min(LEVELS);
        *page += &format!("\n{} {path}\n", "#".repeat(level));
        section(page, verb, &path, &known);
    }
}

/// An argument or option: how it is typed, what it means, and its values.
fn row(arg: &Arg) -> String {
    let values = match arg.get_value_names() {
        Some(names) if arg.get_action().takes_values() => names.join(" "),
        _ => String::new(),
    };
    let typed = match arg.get_long() {
        Some(long) => format!("--{long} {values}"),
        None => values,
    };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut meaning: Vec<String> =
        help.split("\n\n").map(|paragraph| sentence(&prose(paragraph))).collect();
    if arg.get_action().takes_values() {
        let possible = arg.get_possible_values();
        let told = possible.iter().filter(|value| !value.is_hide_set()).map(|value| {
            let help = value.get_help().map(|help| format!(" ({})", prose(&help.to_string())));
            format!("`{}`{}", value.get_name(), help.unwrap_or_default())
        });
        let told: Vec<String> = told.collect();
        if !told.is_empty() {
            meaning.push(format!("One of {}.", told.join(", ")));
        }
        let defaults: Vec<String> =
            arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
        if !defaults.is_empty() {
            meaning.push(format!("Default: `{}`.", defaults.join(",")));
        }
    }
    format!("| `{}` | {} |\n", typed.trim().replace('|', "\\|"), meaning.join(" "))
}

/// Text as Markdown shows it: options as code, and nothing that Markdown would take for its own.
fn prose(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (n, part) in text.split('`').enumerate() {
        if n % 2 == 1 {
            shown += &format!("`{}`", part.replace('|', "\\|"));
            continue;
        }
        let words: Vec<String> = part.split(' ').map(word).collect();
        shown += &words.join(" ");
    }
    shown
}

fn word(word: &str) -> String {
    let start = word.find(|c: char| c != '(' && c != '\'').unwrap_or(word.len());
    let (before, rest) = word.split_at(start);
    if rest.len() > 2 && rest.starts_with("--") {
        let end = rest.trim_end_matches(|c: char| !c.is_alphanumeric()).len();
        return format!("{before}`{}`{}", &rest[..end], &rest[end..]);
    }
    let mut shown = String::with_capacity(word.len());
    for c in word.chars() {
        match c {
            '<' => shown += "&lt;",
            '|' | '*' | '_' | '[' => shown.extend(['\\', c]),
            '\n' => shown.push(' '),
            c => shown.push(c),
        }
    }
    shown
}

/// Ends with a full stop, which `--help` leaves out.
fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.ends_with(['.', ':', '?', ']']) { text.to_owned() } else { format!("{text}.") }
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, builder::PossibleValue};

    use super::*;

    fn command() -> Command {
        Command::new("tool")
            .about("Does things")
            .arg(
                Arg::new("log").long("log").value_name("LEVEL").help("What is logged").global(true),
            )
            .subcommand(
                Command::new("make")
                    .about("Makes a <thing>, not with --force")
                    .after_help("Examples:\n  tool make one")
                    .arg(Arg::new("path").value_name("PATH").help("Where, as `a|b`").required(true))
                    .arg(
                        Arg::new("how")
                            .long("how")
                            .value_name("HOW")
                            .help("How")
                            .value_parser([
                                PossibleValue::new("fast").help("At once"),
                                "slow".into(),
                            ])
                            .default_value("fast"),
                    )
                    .arg(
                        Arg::new("quiet")
                            .long("quiet")
                            .help("Says nothing")
                            .action(ArgAction::SetTrue),
                    ),
            )
            .subcommand(Command::new("secret").hide(true))
    }

    #[test]
    fn a_verb_has_usage_options_and_examples() {
        let page = markdown(command());
        for part in [
            "# The command `tool`\n",
            "| `--log LEVEL` | What is logged. |\n",
            "\n## tool make\n\nMakes a &lt;thing>, not with `--force`.\n",
            "\n```text\ntool make [OPTIONS] <PATH>\n```\n",
            "| `PATH` | Where, as `a\\|b`. |\n",
            "| `--how HOW` | How. One of `fast` (At once), `slow`. Default: `fast`. |\n",
            "| `--quiet` | Says nothing. |\n",
            "\n```text\ntool make one\n```\n",
        ] {
            assert!(page.contains(part), "{part}\nis not in\n{page}");
        }
    }

    #[test]
    fn options_of_every_verb_are_told_once_and_hidden_verbs_never() {
        let page = markdown(command());
        assert_eq!(page.matches("--log").count(), 1);
        assert!(!page.contains("secret"));
    }
}
