//! Sizes as people write and read them: powers of two.

use std::{fmt, str::FromStr};

use onefold_core::{Error, Kind};

/// Letters of the units, each 1024 times the one before.
const LETTERS: &str = "KMGTPE";

/// A number of bytes, written like `100G`, `1T`, `512M`, `1.5T` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Size, Error> {
        let wrong = || {
            Error::new(
                Kind::InvalidInput,
                "a size is a number of bytes with K, M, G, T, P or E for powers of 1024, like 100G",
            )
        };
        // As other programs take it, `lvextend` among them.
        if text.starts_with(['+', '-']) && text.len() > 1 {
            let message =
                "a size is the whole size, as it is to be: nothing is added or taken away";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        // `GiB` says the same as `G`; `GB` means another number to some people.
        let unit = unit.to_ascii_uppercase();
        let letter = unit.strip_suffix("IB").unwrap_or(&unit);
        let power = match letter {
            "" if unit.is_empty() => 0,
            letter if letter.len() == 1 => LETTERS.find(letter).ok_or_else(wrong)? + 1,
            _ => return Err(wrong()),
        };
        let scale = 1_u128 << (10 * power);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty()
            || number.ends_with('.')
            || fraction.len() > 9
            || (power == 0 && !fraction.is_empty())
        {
            return Err(wrong());
        }
        let whole: u128 = whole.parse().map_err(|_| wrong())?;
        let part: u128 =
            if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| wrong())? };
        let part = part * scale / 10_u128.pow(fraction.len() as u32);
        let bytes = whole.checked_mul(scale).and_then(|bytes| u64::try_from(bytes + part).ok());
        bytes.map(Size).ok_or_else(|| Error::new(Kind::InvalidInput, "the size is beyond 16 EiB"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&text(self.0))
    }
}

/// Bytes with three digits or more: `1023 bytes`, `1.50 GiB`, `12.3 GiB`, `123 GiB`.
fn text(bytes: u64) -> String {
    let mut scaled = bytes as f64;
    let mut unit = None;
    for letter in LETTERS.chars() {
        // A number that would be printed as 1024 belongs to the next unit.
        if scaled < 1023.5 {
            break;
        }
        (scaled, unit) = (scaled / 1024.0, Some(letter));
    }
    match unit {
        None => format!("{bytes} bytes"),
        Some(unit) if scaled < 9.995 => format!("{scaled:.2} {unit}iB"),
        Some(unit) if scaled < 99.95 => format!("{scaled:.1} {unit}iB"),
        Some(unit) => format!("{scaled:.0} {unit}iB"),
    }
}

/// A range of bytes, written like `0-64K` or `128M-129M`; the end is not part of it. Serves as
/// blocks: all that it touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteRange(pub std::ops::Range<u64>);

impl FromStr for ByteRange {
    type Err = Error;

    fn from_str(text: &str) -> Result<ByteRange, Error> {
        let wrong = || {
            Error::new(
                Kind::InvalidInput,
                "a range has a start and an end, which is not part of it, like 0-64K",
            )
        };
        let (start, end) = text.split_once('-').ok_or_else(wrong)?;
        let (Size(start), Size(end)) = (start.parse()?, end.parse()?);
        if start < end { Ok(ByteRange(start..end)) } else { Err(wrong()) }
    }
}

impl ByteRange {
    /// The blocks of 4096 bytes that it touches.
    pub fn blocks(&self) -> std::ops::Range<u64> {
        self.0.start / 4096..self.0.end.div_ceil(4096)
    }
}

/// A number with its thousands apart: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things, by the name of one of them: `1 block`, `1,234 blocks`, `2 entries`.
pub fn counted(number: u64, of: &str) -> String {
    let shown = grouped(number);
    match of.strip_suffix('y') {
        _ if number == 1 => format!("{shown} {of}"),
        Some(stem) => format!("{shown} {stem}ies"),
        None => format!("{shown} {of}s"),
    }
}

/// A share in per cent: `12 %`, `1.2 %`; `–` of nothing.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    if percent == 0.0 || percent >= 9.95 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.1} %")
    }
}

/// A time in its two largest units: `2 h 3 min`.
pub fn duration(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let Some(first) = UNITS.iter().position(|unit| seconds >= unit.0) else {
        return "0 s".to_owned();
    };
    let (length, name) = UNITS[first];
    let mut text = format!("{} {name}", seconds / length);
    if let Some((next, name)) = UNITS.get(first + 1)
        && seconds % length >= *next
    {
        text += &format!(" {} {name}", seconds % length / next);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1024),
            ("512M", 512 << 20),
            ("100g", 100 << 30),
            ("1.5T", 3 << 39),
            ("1TiB", 1 << 40),
            ("15E", 15 << 60),
        ] {
            assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "1X",
            "1GB",
            "1 G",
            ".5G",
            "1.G",
            "1.5",
            "16E",
            "99999999999999999999999",
            "1iB",
            "0x10",
            "1KM",
            "ä",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn people_read_three_digits() {
        let shown: Vec<String> =
            [0, 1023, 1024, 1536, 10 << 20, 1023 << 20, (1 << 30) - 1, 123 << 30, u64::MAX]
                .iter()
                .map(|&bytes| Size(bytes).to_string())
                .collect();
        let expected = [
            "0 bytes",
            "1023 bytes",
            "1.00 KiB",
            "1.50 KiB",
            "10.0 MiB",
            "1023 MiB",
            "1.00 GiB",
            "123 GiB",
            "16.0 EiB",
        ];
        assert_eq!(shown, expected);
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([counted(1, "block"), counted(0, "block")], ["1 block", "0 blocks"]);
        assert_eq!([counted(1, "entry"), counted(2, "entry")], ["1 entry", "2 entries"]);
        assert_eq!(
            [share(0, 0), share(0, 5), share(1, 100), share(1, 3)],
            ["–", "0 %", "1.0 %", "33 %"]
        );
        assert_eq!(
            [0, 59, 60, 3723, 90_000].map(duration),
            ["0 s", "59 s", "1 min", "1 h 2 min", "1 d 1 h"]
        );
    }
}
