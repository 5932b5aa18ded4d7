//! `serve --limit VOLUME=IOPS,BYTES`: limits for the clients of volumes, whichever engine has them.

use std::{str::FromStr, sync::Arc};

use onefold_core::{Error, Exports, Kind, Result, Volume, VolumeInfo, VolumeLimits};

use onefold_console::size::Size;

/// Limits of a volume, as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    volume: String,
    limits: VolumeLimits,
}

impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Limit> {
        let wrong = || {
            Error::new(
                Kind::InvalidInput,
                "a limit is VOLUME=IOPS,BYTES, like vm1=500,10M, with 0 for what is not limited",
            )
        };
        let (volume, limits) = text.rsplit_once('=').ok_or_else(wrong)?;
        let (iops, bytes) = limits.split_once(',').ok_or_else(wrong)?;
        let bytes: Size = bytes.parse()?;
        let limits = VolumeLimits { iops: iops.parse().map_err(|_| wrong())?, bytes: bytes.0 };
        Ok(Limit { volume: volume.to_owned(), limits })
    }
}

/// Volumes with the limits that were chosen for some of them.
pub(super) struct Limited {
    pub(super) exports: Arc<dyn Exports>,
    pub(super) chosen: Vec<Limit>,
}

impl Exports for Limited {
    fn list(&self) -> Vec<VolumeInfo> {
        self.exports.list()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
        self.exports.open(name)
    }

    fn shared_name(&self, name: &str) -> String {
        self.exports.shared_name(name)
    }

    fn limits(&self, name: &str) -> Option<VolumeLimits> {
        // Of a volume, or of its snapshots.
        let names = [Some(name), name.strip_suffix('@')];
        let chosen = self.chosen.iter().rfind(|limit| names.contains(&Some(&limit.volume)));
        chosen.map_or_else(|| self.exports.limits(name), |limit| Some(limit.limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing but the names.
    struct Names;

    impl Exports for Names {
        fn list(&self) -> Vec<VolumeInfo> {
            Vec::new()
        }

        fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
            Err(Error::new(Kind::NotFound, name.to_owned()))
        }

        fn shared_name(&self, name: &str) -> String {
            name.split_inclusive('@').next().unwrap_or(name).to_owned()
        }
    }

    #[test]
    fn rule_12_snapshots_have_the_limits_that_were_chosen_for_their_volume() {
        let chosen = vec!["vm1=5,0".parse().unwrap()];
        let limited = Limited { exports: Arc::new(Names), chosen };
        for (name, iops) in [("vm1", 5), ("vm1@a", 5), ("vm1@b", 5), ("vm2@a", 0)] {
            let limits = limited.limits(&limited.shared_name(name)).unwrap();
            assert_eq!(limits.iops, iops, "{name}");
        }
    }

    #[test]
    fn limits_are_written() {
        let limit = |text: &str| {
            text.parse::<Limit>()
                .map(|limit| (limit.volume, limit.limits.iops, limit.limits.bytes))
                .ok()
        };
        assert_eq!(limit("vm1=500,10M"), Some(("vm1".to_owned(), 500, 10 << 20)));
        assert_eq!(limit("a=b=0,4K"), Some(("a=b".to_owned(), 0, 4096)));
        for wrong in ["", "vm1", "vm1=5", "vm1=x,1", "vm1=1,x", "vm1=-1,0"] {
            assert_eq!(limit(wrong), None, "{wrong}");
        }
    }
}
