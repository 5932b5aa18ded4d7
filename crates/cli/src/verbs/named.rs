//! Paths of what a snapshot has: as people type them, and as they are shown.
//!
//! A name is bytes. It is shown as text, with `\xff` for a byte that is none, and a verb that gets this text
//! back finds the name.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use onefold_archive::{Snapshot, TreeEntry, TreeReader};
use onefold_core::{Kind, Result};

/// Signs by which a text may be a pattern.
pub(super) const SIGNS: [u8; 5] = *b"*?[{\\";

/// A path without what means nothing: slashes that are not between two names, and names `.`.
pub(super) fn plain(path: &[u8]) -> Vec<u8> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.collect::<Vec<_>>().join(&b'/')
}

/// The path of what a snapshot has from the root of its system, as it is told in all lists.
pub(super) fn whole(path: &[u8]) -> Vec<u8> {
    [b"/", path].concat()
}

/// A name or a path on one line of text, from which [`bytes`] gives it back.
pub(super) fn shown(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        text.extend(chunk.valid().escape_debug());
        chunk.invalid().iter().for_each(|byte| text += &format!("\\x{byte:02x}"));
    }
    text
}

/// The same for JSON; nothing where the text itself is the path.
pub(super) fn escaped(path: &[u8]) -> Option<String> {
    std::str::from_utf8(path).is_err().then(|| shown(path))
}

/// The bytes that a text shows; nothing when it shows none in another way than by itself.
pub(super) fn bytes(text: &[u8]) -> Option<Vec<u8>> {
    if !text.contains(&b'\\') {
        return None;
    }
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((&first, behind)) = rest.split_first() {
        if first != b'\\' {
            bytes.push(first);
            rest = behind;
            continue;
        }
        let (&sign, behind) = behind.split_first()?;
        rest = behind;
        match sign {
            b'0' => bytes.push(0),
            b't' => bytes.push(b'\t'),
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b'\\' | b'\'' | b'"' => bytes.push(sign),
            b'x' => {
                let (digits, behind) = rest.split_at_checked(2)?;
                bytes.push(u8::try_from(number(digits)?).ok()?);
                rest = behind;
            }
            b'u' => {
                let end = rest.iter().position(|&byte| byte == b'}')?;
                let digits = rest[..end].strip_prefix(b"{")?;
                let letter = char::from_u32(number(digits)?)?;
                bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[end + 1..];
            }
            _ => return None,
        }
    }
    Some(bytes)
}

fn number(digits: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(())?;
    u32::from_str_radix(digits, 16).ok()
}

/// The entry at a path as it was typed, with its plain path: the one whose name it is, or else the one that
/// is shown so.
///
/// # Errors
/// As [`TreeReader::find`].
pub(super) fn find(
    reader: &mut TreeReader,
    snapshot: &Snapshot,
    path: &OsStr,
) -> Result<(Vec<u8>, TreeEntry)> {
    let typed = plain(path.as_bytes());
    match (reader.find(snapshot, &typed), bytes(path.as_bytes())) {
        (Err(error), Some(meant)) if error.kind() == Kind::NotFound => {
            let meant = plain(&meant);
            let found = reader.find(snapshot, &meant).map_err(|_| error)?;
            Ok((meant, found))
        }
        (found, _) => Ok((typed, found?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_and_dots_that_mean_nothing_are_left_out() {
        for path in
            ["etc/apt", "/etc/apt", "./etc/apt", "//etc///apt//", "/./etc/./apt/.", "etc/apt/"]
        {
            assert_eq!(plain(path.as_bytes()), b"etc/apt", "{path}");
        }
        for path in ["", "/", ".", "./", "//."] {
            assert_eq!(plain(path.as_bytes()), b"", "{path}");
        }
        assert_eq!(plain(b".../..a/a."), b".../..a/a.");
    }

    #[test]
    fn what_is_shown_of_a_name_gives_it_back() {
        let names: [&[u8]; 8] = [
            b"a\xff\xfeb",
            b"\xe2\x82",
            b"tab\tline\nreturn\r",
            b"back\\slash \\xff",
            b"'one' \"two\"",
            "n\u{e4}me \u{202e} \u{7f}".as_bytes(),
            b"\x1b[2J",
            b"x\x80/y\xc3",
        ];
        for name in names {
            let text = shown(name);
            assert!(!text.contains(char::is_control), "{text}");
            assert_eq!(bytes(text.as_bytes()).as_deref(), Some(name), "{text}");
        }
        assert_eq!(shown(b"plain name"), "plain name");
        for text in ["plain", "\\", "\\q", "\\x4", "\\xgg", "\\x+f", "\\u{}", "\\u{d800}", "\\u{41"]
        {
            assert_eq!(bytes(text.as_bytes()), None, "{text}");
        }
        assert_eq!((escaped(b"a"), escaped(b"\xff").as_deref()), (None, Some("\\xff")));
    }
}
