//! The paths and patterns of what is wanted of a snapshot.

use std::{
    cell::Cell,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use globset::{GlobBuilder, GlobMatcher};
use onefold_console::failure::Failure;

use crate::verbs::named;

/// How much is wanted of what lies at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// Nothing.
    Nothing,
    /// If it is a directory, perhaps something below it.
    Below,
    /// All of it.
    All,
}

/// One path or pattern.
struct One {
    text: String,
    /// The part before the first sign of a pattern, up to a slash.
    begins: Vec<u8>,
    pattern: Option<GlobMatcher>,
    found: Cell<bool>,
}

/// Paths and patterns.
pub(super) struct Wanted(Vec<One>);

impl Wanted {
    /// All of a snapshot.
    pub(super) fn everything() -> Wanted {
        Wanted(vec![One::path("/".to_owned(), Vec::new())])
    }

    /// The paths of the command line; without one, everything is wanted. A path that is there, as it was
    /// typed or as it is shown, is no pattern; another one may be, unless `exact` is set.
    pub(super) fn new(
        texts: &[OsString],
        exact: bool,
        is_there: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Wanted, Failure> {
        if texts.is_empty() {
            return Ok(Wanted::everything());
        }
        texts
            .iter()
            .map(|text| One::new(text, exact, is_there))
            .collect::<Result<_, _>>()
            .map(Wanted)
    }

    /// How much is wanted of a path, which begins with no slash.
    pub(super) fn takes(&self, path: &[u8]) -> Takes {
        let all = self.0.iter().map(|one| one.takes(path));
        all.max_by_key(|takes| *takes as u8).unwrap_or(Takes::Nothing)
    }

    /// Refuses a path that named nothing.
    pub(super) fn all_found(&self) -> Result<(), Failure> {
        match self.0.iter().find(|one| !one.found.get()) {
            None => Ok(()),
            Some(one) => {
                let hint = match &one.pattern {
                    Some(_) => {
                        "a pattern is matched with whole paths, in which * stands for no /: '**/*.odt' takes \
                         all such files, and '/home/*/notes' a name in each directory of /home"
                    }
                    None => {
                        "a path is a whole one, from the root of the system; '**/NAME' finds it anywhere"
                    }
                };
                Err(Failure::new(format!("the snapshot has nothing at '{}': {hint}", one.text)))
            }
        }
    }
}

impl One {
    fn new(
        typed: &OsStr,
        exact: bool,
        is_there: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<One, Failure> {
        let (text, plain) = (named::shown(typed.as_bytes()), named::plain(typed.as_bytes()));
        if !plain.iter().any(|byte| named::SIGNS.contains(byte)) || is_there(&plain) {
            return Ok(One::path(text, plain));
        }
        let meant = named::bytes(&plain).map(|meant| named::plain(&meant));
        if let Some(meant) = meant.filter(|meant| is_there(meant)) {
            return Ok(One::path(text, meant));
        }
        if exact {
            return Ok(One::path(text, plain));
        }
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::usage(format!("the pattern '{text}' can't be used: {why}"))
        };
        let pattern = std::str::from_utf8(&plain).map_err(|_| wrong(&"it is no UTF-8"))?;
        let literal = pattern.bytes().position(|byte| named::SIGNS.contains(&byte));
        let begins =
            literal.and_then(|at| pattern[..at].rfind('/')).map_or("", |at| &pattern[..at]);
        let glob = GlobBuilder::new(pattern).literal_separator(true).build();
        let glob = glob.map_err(|error| wrong(error.kind()))?.compile_matcher();
        let begins = begins.as_bytes().to_vec();
        Ok(One { text, begins, pattern: Some(glob), found: Cell::new(false) })
    }

    /// A path, which takes all below it.
    fn path(text: String, begins: Vec<u8>) -> One {
        // Everything is there, even when it is nothing.
        let found = Cell::new(begins.is_empty());
        One { text, begins, pattern: None, found }
    }

    fn takes(&self, path: &[u8]) -> Takes {
        let leads = |short: &[u8], long: &[u8]| {
            short.is_empty()
                || long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        let hit = match &self.pattern {
            None => leads(&self.begins, path),
            Some(pattern) => pattern.is_match(Path::new(OsStr::from_bytes(path))),
        };
        if hit {
            self.found.set(true);
            return Takes::All;
        }
        let below =
            leads(path, &self.begins) || self.pattern.is_some() && leads(&self.begins, path);
        if below { Takes::Below } else { Takes::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(texts: &[&str], exact: bool, there: &[&[u8]]) -> Wanted {
        let texts: Vec<OsString> = texts.iter().map(OsString::from).collect();
        Wanted::new(&texts, exact, &mut |path| there.contains(&path)).unwrap()
    }

    fn takes(texts: &[&str], path: &str) -> Takes {
        wanted(texts, false, &[]).takes(path.as_bytes())
    }

    #[test]
    fn a_path_takes_all_below_it() {
        for (path, expected) in [
            ("", Takes::Below),
            ("etc", Takes::Below),
            ("etc/apt", Takes::All),
            ("etc/apt/sources.list", Takes::All),
            ("etc/aptitude", Takes::Nothing),
            ("home", Takes::Nothing),
        ] {
            assert_eq!(takes(&["/etc/apt/"], path), expected, "{path}");
        }
        assert_eq!(takes(&[], "anything"), Takes::All);
        assert_eq!(takes(&["/"], ""), Takes::All);
    }

    #[test]
    fn a_pattern_looks_only_where_it_can_match() {
        for (path, expected) in [
            ("home", Takes::Below),
            ("home/a/b", Takes::Below),
            ("home/a/b.odt", Takes::All),
            ("etc", Takes::Nothing),
        ] {
            assert_eq!(takes(&["/home/**/*.odt"], path), expected, "{path}");
        }
        assert!(Wanted::new(&["a[".into()], false, &mut |_| false).is_err());
    }

    #[test]
    fn a_name_that_is_there_is_no_pattern() {
        let there: &[&[u8]] = &[b"d/a[1]", b"d/\xff", b"[", b"d/\xfe\n"];
        let takes = |text, exact, path: &[u8]| wanted(&[text], exact, there).takes(path);
        for text in ["/d/a[1]", "d//a[1]/", "./d/a[1]"] {
            assert_eq!(takes(text, false, b"d/a[1]"), Takes::All);
            assert_eq!(takes(text, false, b"d/a[1]/below"), Takes::All);
            assert_eq!(takes(text, false, b"d/a1"), Takes::Nothing);
        }
        assert_eq!(
            takes("d/[b]", false, b"d/b"),
            Takes::All,
            "it is not there, so it is a pattern"
        );
        assert_eq!(takes("d/[b]", true, b"d/b"), Takes::Nothing);
        assert_eq!(takes("d/\\[b]", false, b"d/[b]"), Takes::All);
        assert_eq!(takes("[", false, b"["), Takes::All);
        // Names that are no text, as they are shown.
        assert_eq!(takes("/d/\\xff", false, b"d/\xff"), Takes::All);
        assert_eq!(takes("d/\\xfe\\n", false, b"d/\xfe\n"), Takes::All);
    }
}
