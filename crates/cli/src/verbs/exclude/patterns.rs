//! Patterns of gitignore that match bytes.
//!
//! The crate `ignore` takes patterns as text, and matches paths by their bytes. Bytes that are no UTF-8
//! stand in the text of a pattern as letters of their own ([`letters`]). A pattern with such a letter is
//! made as that crate makes it, and its letters become the bytes again before it is compiled. So a `?` is
//! one byte, and a range of bytes is one, in all of them. The patterns before and behind it are left to
//! the crate, which looks at thousands of them at once; each of the others is looked at by itself.

use std::{os::unix::ffi::OsStrExt, path::Path};

use globset::GlobBuilder;
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use regex_automata::{meta::Regex, util::syntax};

use crate::verbs::named;

/// The letter that stands for the byte 0x80; those of the other bytes follow. Nobody has a use for
/// these, and where a pattern has one, its bytes stand for themselves.
const FIRST: u32 = 0x10_ff80;

/// How these letters, and others, begin in an expression.
const LETTERS: &str = "\\xf4\\x8f";

/// Memory of such a pattern, compiled, and for looking at a path.
const COMPILED_BYTES: usize = 1 << 20;
const LOOKING_BYTES: usize = 256 << 10;

/// Bytes as which a line of a file with such a pattern counts beside its own.
const LINE_BYTES: usize = 2 << 10;

/// Longest line of a file with such a pattern.
const LINE_MOST: usize = 1 << 10;

/// Bytes as text.
pub(super) fn letters(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let of_byte = |byte: u8| char::from_u32(FIRST + u32::from(byte) - 0x80);
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match byte_of(letter) {
                None => text.push(letter),
                Some(_) => {
                    text.extend(letter.encode_utf8(&mut [0; 4]).bytes().filter_map(of_byte));
                }
            }
        }
        text.extend(chunk.invalid().iter().copied().filter_map(of_byte));
    }
    text
}

/// The byte that a letter stands for.
fn byte_of(letter: char) -> Option<u8> {
    let past = u32::from(letter).checked_sub(FIRST)?;
    u8::try_from(past + 0x80).ok()
}

/// A text of such letters, for users.
pub(super) fn shown(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for letter in text.chars() {
        match byte_of(letter) {
            Some(byte) => all += &named::shown(&[byte]),
            None => all.push(letter),
        }
    }
    all
}

/// True for a text with such letters.
fn has_bytes(text: &str) -> bool {
    text.chars().any(|letter| byte_of(letter).is_some())
}

/// Why a line of a file takes too much time at each path, if it does.
pub(super) fn too_long(line: &str) -> Option<String> {
    (line.len() > LINE_MOST && has_bytes(line))
        .then(|| format!("a line with bytes that are no UTF-8 has more than {LINE_MOST}"))
}

/// Bytes as which a file of patterns counts.
pub(super) fn weight(text: &[u8]) -> usize {
    let heavy = text.split(|&byte| byte == b'\n').filter(|line| has_bytes(&letters(line)));
    text.len() + LINE_BYTES * heavy.count()
}

/// Patterns of which the last that matches decides.
#[derive(Clone, Debug, Default)]
pub(super) struct Patterns(Vec<Part>);

/// Some of them, one behind the other.
#[derive(Clone, Debug)]
enum Part {
    Text(Gitignore),
    /// See the head of the module.
    Bytes(Line, Regex),
}

/// The meaning of a line of gitignore, beside its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    /// It takes out of what patterns before it name.
    keeps: bool,
    of_directories: bool,
}

impl Patterns {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when what is at a path is left out, false when it is not; `None` when no pattern matches.
    pub(super) fn leave_out(&self, path: &Path, is_directory: bool) -> Option<bool> {
        self.0.iter().rev().find_map(|part| part.leave_out(path, is_directory))
    }
}

impl Part {
    /// A line with bytes; nothing for a comment.
    fn of_bytes(line: &str) -> Result<Option<Part>, String> {
        let Some((line, pattern)) = parsed(line) else { return Ok(None) };
        let mut glob = GlobBuilder::new(&pattern);
        glob.literal_separator(true).backslash_escape(true).allow_unclosed_class(true);
        let glob = glob.build().map_err(|e| shown(&e.to_string()))?;
        let syntax = syntax::Config::new().utf8(false).dot_matches_new_line(true);
        let config = Regex::config()
            .utf8_empty(false)
            .nfa_size_limit(Some(COMPILED_BYTES))
            .hybrid_cache_capacity(LOOKING_BYTES);
        let built =
            Regex::builder().syntax(syntax).configure(config).build(&with_bytes(glob.regex()));
        built.map(|regex| Some(Part::Bytes(line, regex))).map_err(|e| e.to_string())
    }

    fn leave_out(&self, path: &Path, is_directory: bool) -> Option<bool> {
        match self {
            Part::Text(patterns) => match patterns.matched(path, is_directory) {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            },
            Part::Bytes(line, regex) => {
                let counts = is_directory || !line.of_directories;
                (counts && regex.is_match(path.as_os_str().as_bytes())).then_some(!line.keeps)
            }
        }
    }
}

/// Gathers the lines of one list.
pub(super) struct Builder {
    parts: Vec<Part>,
    /// What is behind the last part.
    text: GitignoreBuilder,
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder { parts: Vec::new(), text: GitignoreBuilder::new("") }
    }

    /// # Errors
    /// Why the line can't be used; it counts for nothing then.
    pub(super) fn add_line(&mut self, line: &str) -> Result<(), String> {
        if !has_bytes(line) {
            return self.text.add_line(None, line).map(drop).map_err(|e| e.to_string());
        }
        if let Some(part) = Part::of_bytes(line)? {
            self.end_text()?;
            self.parts.push(part);
        }
        Ok(())
    }

    fn end_text(&mut self) -> Result<(), String> {
        let text = std::mem::replace(&mut self.text, GitignoreBuilder::new(""));
        let text = text.build().map_err(|e| e.to_string())?;
        if !text.is_empty() {
            self.parts.push(Part::Text(text));
        }
        Ok(())
    }

    /// # Errors
    /// Why the patterns can't be used.
    pub(super) fn build(mut self) -> Result<Patterns, String> {
        self.end_text()?;
        Ok(Patterns(self.parts))
    }
}

/// An expression in which letters that stand for bytes become these. It has each byte of a letter as
/// `\x` and two digits.
fn with_bytes(expression: &str) -> String {
    const BYTE: usize = 4;
    let (mut all, mut rest) = (String::with_capacity(expression.len()), expression);
    while let Some(at) = rest.find(LETTERS) {
        let (before, letter) = rest.split_at(at);
        all += before;
        let (letter, behind) = letter.split_at_checked(4 * BYTE).unwrap_or((letter, ""));
        match letter_of(letter).and_then(byte_of) {
            Some(byte) => all += &format!("\\x{byte:02x}"),
            None => all += letter,
        }
        rest = behind;
    }
    all + rest
}

/// The letter whose four bytes an expression has.
fn letter_of(bytes: &str) -> Option<char> {
    let bytes = bytes.strip_prefix("\\x")?.split("\\x");
    let bytes = bytes.map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<Vec<u8>, _>>();
    std::str::from_utf8(&bytes.ok()?).ok()?.chars().next()
}

/// What a line says, and its pattern for whole paths, as the crate `ignore` reads it; nothing for a comment
/// and an empty line.
fn parsed(line: &str) -> Option<(Line, String)> {
    let line = if line.ends_with("\\ ") { line } else { line.trim_end() };
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (rest, keeps) = match line.strip_prefix('!') {
        Some(rest) => (rest, true),
        None => {
            (line.strip_prefix('\\').filter(|r| r.starts_with(['!', '#'])).unwrap_or(line), false)
        }
    };
    let (rest, is_whole) = match rest.strip_prefix('/') {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let (rest, of_directories) = match rest.strip_suffix('/') {
        Some(rest) => (rest.strip_suffix('\\').unwrap_or(rest), true),
        None => (rest, false),
    };
    let is_anywhere = !is_whole && !rest.contains('/') && rest != "**";
    let mut pattern = if is_anywhere { format!("**/{rest}") } else { rest.to_owned() };
    if pattern.ends_with("/**") {
        pattern += "/*";
    }
    Some((Line { keeps, of_directories }, pattern))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn built(lines: &[&[u8]]) -> Patterns {
        let mut builder = Builder::new();
        lines.iter().for_each(|line| builder.add_line(&letters(line)).unwrap());
        builder.build().unwrap()
    }

    fn leave_out(patterns: &Patterns, path: &[u8], is_directory: bool) -> Option<bool> {
        patterns.leave_out(Path::new(OsStr::from_bytes(path)), is_directory)
    }

    #[test]
    fn letters_stand_for_one_row_of_bytes_each() {
        let all: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let odd = "\u{10ff80}\u{10ffff}".as_bytes().to_vec();
        let rows = [b"".to_vec(), b"a\xffb".to_vec(), "é".into(), b"\xc3\xc3".to_vec(), odd];
        let mut seen = std::collections::HashSet::new();
        for row in all.iter().chain(&rows) {
            assert!(seen.insert(letters(row)), "{row:?}");
        }
        assert_eq!(letters("plain é".as_bytes()), "plain é");
        assert_eq!(shown(&letters(b"a\xff\xc3b")), "a\\xff\\xc3b");
    }

    #[test]
    fn rule_14_patterns_match_bytes() {
        let patterns = built(&[b"a\xffb", b"/top\xfe", b"d\xfd/", b"[\xc0-\xcf]x", b"!keep\xff"]);
        let takes = |path: &[u8]| leave_out(&patterns, path, false) == Some(true);
        assert!(takes(b"a\xffb") && takes(b"sub/a\xffb") && takes(b"\xff/a\xffb"));
        assert!(!takes(b"a\xfeb") && !takes(b"a\xff") && !takes(b"xa\xffb"));
        assert!(!takes("a\u{10ffff}b".as_bytes()), "what stands for a byte is not that byte");
        assert!(takes(b"top\xfe") && !takes(b"sub/top\xfe"));
        assert!(!takes(b"d\xfd") && leave_out(&patterns, b"d\xfd", true) == Some(true));
        assert!(takes(b"\xc0x") && takes(b"\xcax") && !takes(b"\xd0x") && !takes(b"x"));
        assert_eq!(leave_out(&patterns, b"sub/keep\xff", false), Some(false));
        // Letters of several bytes beside bytes that are parts of such.
        let patterns = built(&["é\u{10ffff}".as_bytes(), b"\xa9?z", b"*.\xff*"]);
        let takes = |path: &[u8]| leave_out(&patterns, path, false) == Some(true);
        assert!(takes("é\u{10ffff}".as_bytes()) && !takes(b"\xa9\xff"));
        assert!(takes(b"\xa9\xfez") && takes(b"\xa9az") && !takes("éaz".as_bytes()));
        assert!(takes(b"x.\xff") && takes(b"d/.\xff\xff") && !takes(b".x\xff"));
    }

    #[test]
    fn patterns_with_such_bytes_mean_the_same_as_those_without() {
        let lines: [&[u8]; 22] = [
            b"name",
            b"*.o",
            b"!keep.o",
            b"/top",
            b"dir/",
            b"a/b",
            b"/a/c/",
            b"**/deep",
            b"x/**",
            b"m/**/n",
            b"\\#hash",
            b"\\!bang",
            b"# comment",
            b"",
            b"sp ace  ",
            b"end\\ ",
            b"[a-c]z",
            b"q?r",
            b"{one,two}",
            b"**",
            b"!**/b",
            b"open[x",
        ];
        let names = [
            "name",
            "x",
            "x.o",
            "keep.o",
            "top",
            "dir",
            "a",
            "b",
            "c",
            "deep",
            "m",
            "n",
            "#hash",
            "!bang",
            "# comment",
            "sp ace",
            "end ",
            "az",
            "bz",
            "dz",
            "qxr",
            "q/r",
            "one",
            "two",
            "open[x",
            "q\u{e9}r",
        ];
        let mut paths: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        for above in ["a", "x", "m", "dir", "a/c", "m/k/l"] {
            paths.extend(names.iter().map(|name| format!("{above}/{name}")));
        }
        let same = |lines: &[&[u8]]| {
            let text = built(lines);
            let each = lines.iter().filter_map(|line| Part::of_bytes(&letters(line)).unwrap());
            let bytes = Patterns(each.collect());
            for (path, is_directory) in paths.iter().flat_map(|path| [(path, false), (path, true)])
            {
                let both = [&text, &bytes].map(|one| leave_out(one, path.as_bytes(), is_directory));
                assert_eq!(both[0], both[1], "{path} {is_directory} {lines:?}");
            }
        };
        same(&lines);
        lines.iter().for_each(|&line| same(&[line]));
    }
}
