//! Heads: where the history of an archive has come to, as clients remember and compare it (decision 79).

use onefold_core::hex_digits;
use std::{fmt, str::FromStr};

/// Hexadecimal digits of the short form.
const SHORT_DIGITS: usize = 16;

/// The number of the last change, and a mark by which histories with as many changes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The number of the last change; 0 before the first one.
    pub number: u64,
    /// The mark of this history.
    pub mark: Mark,
}

/// A mark by which histories with as many changes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A hash of all changes, of an archive that keeps heads.
    History([u8; 32]),
    /// The checksum of the last change alone, of an archive that keeps no heads.
    Change(u64),
}

impl Mark {
    fn digits(&self) -> String {
        match self {
            Mark::History(hash) => hex_digits(hash),
            Mark::Change(checksum) => format!("{checksum:016x}"),
        }
    }
}

impl fmt::Display for Head {
    /// The short form, which people compare: the number, and 16 digits of the mark.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, &self.mark.digits()[..SHORT_DIGITS])
    }
}

impl Head {
    /// The whole head as a text, which [`parse`](str::parse) reads.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{} {}", self.number, self.mark.digits())
    }
}

impl FromStr for Head {
    type Err = ();

    fn from_str(text: &str) -> Result<Head, ()> {
        let (number, digits) = text.split_once(' ').ok_or(())?;
        let number = number.parse().map_err(|_| ())?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mark = match digits.len() {
            64 if is_hex => {
                let mut hash = [0; 32];
                for (n, byte) in hash.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).map_err(|_| ())?;
                }
                Mark::History(hash)
            }
            16 if is_hex => Mark::Change(u64::from_str_radix(digits, 16).map_err(|_| ())?),
            _ => return Err(()),
        };
        Ok(Head { number, mark })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_44_a_head_is_read_as_it_was_written() {
        for mark in [Mark::History([0xa7; 32]), Mark::Change(0x0123_4567_89ab_cdef)] {
            let head = Head { number: 41, mark };
            assert_eq!(head.to_text().parse(), Ok(head));
        }
        let head = Head { number: 7, mark: Mark::Change(5) };
        assert_eq!(head.to_string(), "7-0000000000000005");
        for bad in ["", "7", "7 ", "7 05", "x 0000000000000005", "7 000000000000000é"] {
            assert!(bad.parse::<Head>().is_err(), "{bad}");
        }
    }
}
