//! The file of policies, in TOML: which snapshots are kept, and when the archive is looked after.
//!
//! ```toml
//! zone = "Europe/Berlin"
//! [[keep]]
//! set = "web*"
//! daily = 7
//! [gc]
//! every = "1d"
//! [scrub]
//! round = "30d"
//! [load]
//! limit = "50M"
//! ```

use std::{path::Path, time::Duration};

use globset::{Glob, GlobMatcher};
use jiff::tz::TimeZone;
use onefold_backend::settings_file;
use onefold_console::size::Size;
use onefold_core::{Error, Kind, Result};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{period::period, policy::Policy};

/// Bytes of the file at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The content of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(in crate::verbs) struct PolicyFile {
    /// The time zone by which days begin; without it, that of this host.
    #[serde(deserialize_with = "zone")]
    pub(in crate::verbs) zone: TimeZone,
    /// Clients that may be hostile add snapshots: the first of each period counts too.
    pub(in crate::verbs) append_only: bool,
    /// Policies; the first that fits a set counts.
    pub(in crate::verbs) keep: Vec<KeepRule>,
    pub(in crate::verbs) gc: GcRule,
    pub(in crate::verbs) scrub: ScrubRule,
    pub(in crate::verbs) load: LoadRule,
}

impl Default for PolicyFile {
    fn default() -> PolicyFile {
        PolicyFile {
            zone: TimeZone::system(),
            append_only: false,
            keep: Vec::new(),
            gc: GcRule::default(),
            scrub: ScrubRule::default(),
            load: LoadRule::default(),
        }
    }
}

/// A policy for some sets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(in crate::verbs) struct KeepRule {
    /// Which sets, and of which hosts: names with `*`, `?`, `[a-z]` and `{one,other}`.
    #[serde(deserialize_with = "pattern")]
    set: GlobMatcher,
    #[serde(deserialize_with = "pattern")]
    host: GlobMatcher,
    last: u64,
    hourly: u64,
    daily: u64,
    weekly: u64,
    monthly: u64,
    yearly: u64,
    #[serde(deserialize_with = "retention")]
    within: Duration,
    tags: Vec<String>,
}

impl Default for KeepRule {
    fn default() -> KeepRule {
        let any = || all().compile_matcher();
        KeepRule {
            set: any(),
            host: any(),
            last: 0,
            hourly: 0,
            daily: 0,
            weekly: 0,
            monthly: 0,
            yearly: 0,
            within: Duration::ZERO,
            tags: Vec::new(),
        }
    }
}

/// When space is freed.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(in crate::verbs) struct GcRule {
    /// How long after the last one that went through; snapshots are forgotten before it.
    #[serde(deserialize_with = "time")]
    pub(in crate::verbs) every: Duration,
    #[serde(deserialize_with = "retention")]
    pub(in crate::verbs) trash: Duration,
    #[serde(deserialize_with = "retention")]
    pub(in crate::verbs) keep_partial: Duration,
}

impl Default for GcRule {
    fn default() -> GcRule {
        GcRule { every: DAY, trash: 7 * DAY, keep_partial: DAY }
    }
}

/// When data is read.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(in crate::verbs) struct ScrubRule {
    /// All data once in this time.
    #[serde(deserialize_with = "time")]
    pub(in crate::verbs) round: Duration,
}

impl Default for ScrubRule {
    fn default() -> ScrubRule {
        ScrubRule { round: 30 * DAY }
    }
}

/// How much the work may take of the disk.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(in crate::verbs) struct LoadRule {
    /// Work begins when nobody asked for anything for so long; zero does not wait.
    #[serde(deserialize_with = "time")]
    pub(in crate::verbs) idle: Duration,
    /// When clients left no such pause for so long, work goes on beside them, in a twentieth of the time; zero
    /// waits without end.
    #[serde(deserialize_with = "time")]
    pub(in crate::verbs) longest: Duration,
    /// Bytes a second, read and written; zero is no limit.
    #[serde(deserialize_with = "size")]
    pub(in crate::verbs) limit: u64,
}

impl Default for LoadRule {
    fn default() -> LoadRule {
        LoadRule {
            idle: Duration::from_secs(10),
            longest: Duration::from_secs(300),
            limit: 50 << 20,
        }
    }
}

const DAY: Duration = Duration::from_secs(86_400);

fn all() -> Glob {
    // The only pattern that can't be wrong.
    Glob::new("*").unwrap_or_else(|_| unreachable!("a star is a pattern"))
}

impl PolicyFile {
    /// Reads the file.
    ///
    /// # Errors
    /// `Io`, and `InvalidInput` with the place that makes no sense.
    pub(in crate::verbs) fn read(path: &Path) -> Result<PolicyFile> {
        let parsed = settings_file(path, FILE_BYTES_MAX).and_then(|text| PolicyFile::parse(&text));
        parsed.map_err(|error| error.context(path.display()))
    }

    fn parse(text: &str) -> Result<PolicyFile> {
        let wrong = |what: String| Error::new(Kind::InvalidInput, what);
        let file: PolicyFile = toml::from_str(text).map_err(|error| {
            // The crate shows the line below its sentence.
            let line = error.span().map(|span| text[..span.start].lines().count().max(1));
            let place = line.map_or_else(String::new, |line| format!("line {line}: "));
            wrong(format!("{place}{}", error.message()))
        })?;
        for (n, rule) in file.keep.iter().enumerate() {
            let n = n + 1;
            let policy = rule.policy();
            if policy.is_empty() {
                return Err(wrong(format!("policy {n} keeps nothing: it would empty its sets")));
            }
        }
        if file.append_only {
            file.check_append_only()?;
        }
        Ok(file)
    }

    /// Refuses policies by which clients that only add push good snapshots out.
    ///
    /// # Errors
    /// `InvalidInput`, with the number of the policy.
    pub(in crate::verbs) fn check_append_only(&self) -> Result<()> {
        let check = |(n, rule): (usize, &KeepRule)| {
            let checked = rule.policy().check_append_only();
            checked.map_err(|error| error.context(format!("policy {}", n + 1)))
        };
        self.keep.iter().enumerate().try_for_each(check)
    }

    /// The policy of a set of a host; `None` for a set of which all is kept.
    pub(in crate::verbs) fn policy(&self, host: &str, set: &str) -> Option<Policy> {
        let fits = |rule: &&KeepRule| rule.set.is_match(set) && rule.host.is_match(host);
        self.keep.iter().find(fits).map(KeepRule::policy)
    }
}

impl KeepRule {
    fn policy(&self) -> Policy {
        Policy {
            last: self.last,
            hourly: self.hourly,
            daily: self.daily,
            weekly: self.weekly,
            monthly: self.monthly,
            yearly: self.yearly,
            within: self.within.as_secs(),
            tags: self.tags.clone(),
        }
    }
}

fn zone<'de, D: Deserializer<'de>>(from: D) -> Result<TimeZone, D::Error> {
    let name = String::deserialize(from)?;
    TimeZone::get(&name).map_err(|_| D::Error::custom(format!("there is no time zone '{name}'")))
}

fn pattern<'de, D: Deserializer<'de>>(from: D) -> Result<GlobMatcher, D::Error> {
    let text = String::deserialize(from)?;
    let glob = Glob::new(&text);
    glob.map(|glob| glob.compile_matcher()).map_err(|error| D::Error::custom(error.to_string()))
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    let wrong = |error| D::Error::custom(format!("'{text}' is no time, like 14d or 2h: {error}"));
    humantime::parse_duration(&text).map_err(wrong)
}

/// A time for which something is kept: days, or months.
fn retention<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    let wrong = |error| D::Error::custom(format!("'{text}' is no time, like 14d or 2h: {error}"));
    period(&text).map_err(wrong)
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse::<Size>().map(|size| size.0).map_err(|error| D::Error::custom(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"
        zone = "UTC"
        [[keep]]
        set = "web*"
        daily = 7
        weekly = 5
        [[keep]]
        host = "db?"
        within = "14d"
        last = 3
        tags = ["audit"]
        [gc]
        every = "12h"
        [load]
        limit = "20M"
        idle = "0s"
    "#;

    #[test]
    fn the_first_policy_that_fits_counts() {
        let file = PolicyFile::parse(EXAMPLE).unwrap();
        assert_eq!(file.policy("db1", "web1").unwrap().daily, 7);
        let other = file.policy("db1", "shop").unwrap();
        assert_eq!((other.last, other.within), (3, 14 * 86_400));
        assert_eq!(other.tags, ["audit"]);
        assert!(file.policy("host", "shop").is_none());
        assert_eq!((file.gc.every.as_secs(), file.gc.trash.as_secs()), (43_200, 7 * 86_400));
        assert_eq!((file.load.limit, file.load.idle), (20 << 20, Duration::ZERO));
        assert_eq!(file.scrub.round, 30 * DAY);
        assert!(PolicyFile::parse("").unwrap().policy("a", "b").is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_place() {
        for (text, says) in [
            ("[[keep]]\nset = 'a'", "policy 1 keeps nothing"),
            ("append-only = true\n[[keep]]\nlast = 1", "policy 1"),
            ("zone = 'Nowhere/At_All'", "no time zone"),
            ("[gc]\nevery = 'often'", "line 2"),
            ("[[keep]]\nwithin = '1m'", "min or M"),
            ("[gc]\ntrash = '1m'", "min or M"),
            ("[load]\nlimit = 'much'", "line 2"),
            ("[[keep]]\ndayly = 7", "dayly"),
            ("[[keep]]\nset = '['\nlast = 1", "line 2"),
            ("keep = 1", "line 1"),
        ] {
            let error = PolicyFile::parse(text).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidInput);
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
    }
}
