//! Limits of a volume's clients, for people.

use onefold::parts::control::Speed;
use onefold_console::size::Size;

/// Limits for people.
pub(super) fn shown(limits: &Speed) -> String {
    let iops = (limits.iops > 0).then(|| format!("{} requests", limits.iops));
    let bytes = (limits.bytes > 0).then(|| Size(limits.bytes).to_string());
    format!(
        "at most {} a second",
        [iops, bytes].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    )
}
