//! Files of usage counts by their names, and the highest count.

/// Counts saturate: what reached this is never freed.
pub(crate) const MOST: u16 = u16::MAX;

pub(crate) fn counts_name(number: u64) -> String {
    format!("counts-{number:010}")
}

/// The number of a file of counts, by its name; `None` for other files.
pub(crate) fn counts_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("counts-")?.parse().ok()?;
    (counts_name(number) == name).then_some(number)
}

/// The highest number that files of counts have.
pub(crate) fn highest_counts(names: &[String]) -> u64 {
    // A name that somebody made has no say in what a record can hold.
    let numbers = names.iter().filter_map(|name| counts_number(name));
    numbers.filter(|&number| number < 1 << 60).max().unwrap_or(0)
}
