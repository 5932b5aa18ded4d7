//! Times for which something is kept.

use std::time::Duration;

/// A time like `14d` or `6M`. `m` is refused: it is minutes to one program and months to another, and who
/// means months would lose what an hour took away.
pub(in crate::verbs) fn period(text: &str) -> Result<Duration, String> {
    let mut units = text.split(|c: char| !c.is_alphabetic());
    if units.any(|unit| unit == "m") {
        return Err("m could be minutes or months: say min or M".to_owned());
    }
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_and_months_are_told_apart() {
        let seconds = |text: &str| period(text).map(|time| time.as_secs());
        assert_eq!((seconds("1min"), seconds("2h 30min")), (Ok(60), Ok(9000)));
        assert!((30 * 86_400..31 * 86_400).contains(&seconds("1M").unwrap()));
        for text in ["1m", "2d1m", "1y 6m", "6m3d"] {
            assert!(seconds(text).unwrap_err().contains("say min or M"), "{text}");
        }
        assert!(seconds("long").is_err());
    }
}
