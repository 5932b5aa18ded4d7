//! Bytes as people and file names have them.

use std::fmt::Write as _;

/// Bytes in hexadecimal digits, two for each.
#[must_use]
pub fn hex_digits(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
