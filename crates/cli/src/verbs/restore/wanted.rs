//! The paths and patterns of what is wanted of a snapshot.

use std::{cell::Cell, ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use globset::{GlobBuilder, GlobMatcher};
use onefold_console::failure::Failure;

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
    /// The part before the first character of a pattern, up to a slash.
    begins: Vec<u8>,
    pattern: Option<GlobMatcher>,
    found: Cell<bool>,
}

/// Paths and patterns.
pub(super) struct Wanted(Vec<One>);

impl Wanted {
    /// The paths of the command line; without one, everything is wanted.
    pub(super) fn new(texts: &[String]) -> Result<Wanted, Failure> {
        let everything = ["/".to_owned()];
        let texts = if texts.is_empty() { &everything } else { texts };
        texts.iter().map(|text| One::new(text)).collect::<Result<_, _>>().map(Wanted)
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
            Some(one) => Err(Failure::new(format!(
                "the snapshot has nothing at '{}'",
                one.text.escape_debug()
            ))),
        }
    }
}

impl One {
    fn new(text: &str) -> Result<One, Failure> {
        let plain = text.trim_matches('/');
        let is_pattern = plain.contains(['*', '?', '[', '{', '\\']);
        let literal = plain.find(['*', '?', '[', '{', '\\']).map_or(plain, |at| &plain[..at]);
        let begins = match is_pattern {
            true => literal.rfind('/').map_or("", |at| &literal[..at]),
            false => literal,
        };
        let pattern = is_pattern.then(|| GlobBuilder::new(plain).literal_separator(true).build());
        let pattern = pattern.transpose().map_err(|error| {
            Failure::usage(format!("the pattern '{text}' can't be used: {}", error.kind()))
        })?;
        Ok(One {
            text: text.to_owned(),
            begins: begins.as_bytes().to_vec(),
            pattern: pattern.map(|glob| glob.compile_matcher()),
            // Everything is there, even when it is nothing.
            found: Cell::new(plain.is_empty()),
        })
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

    fn takes(texts: &[&str], path: &str) -> Takes {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        Wanted::new(&texts).unwrap().takes(path.as_bytes())
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
        assert!(Wanted::new(&["a[".to_owned()]).is_err());
    }
}
