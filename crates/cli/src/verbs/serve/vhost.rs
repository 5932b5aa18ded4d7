//! `serve --vhost VOLUME=unix:PATH`: volumes as disks of virtual machines that share their memory.

use std::{path::PathBuf, str::FromStr};

use onefold_core::{Error, Kind, Result};

/// A device, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VhostDevice {
    /// The volume or snapshot.
    pub(super) volume: String,
    /// The socket for its client.
    pub(super) path: PathBuf,
}

impl FromStr for VhostDevice {
    type Err = Error;

    fn from_str(text: &str) -> Result<VhostDevice> {
        // The path is the last of its kind: names of volumes have any characters.
        match text.rsplit_once("=unix:") {
            Some((volume, path)) if !volume.is_empty() && !path.is_empty() => {
                Ok(VhostDevice { volume: volume.to_owned(), path: path.into() })
            }
            _ => Err(Error::new(
                Kind::InvalidInput,
                "a device is VOLUME=unix:PATH, like vm1=unix:/run/onefold/vm1.sock",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_volume_and_a_path() {
        let device = |text: &str| text.parse::<VhostDevice>();
        let vm1 = device("vm1@a=unix:/run/x=y,z.sock").unwrap();
        assert_eq!((vm1.volume.as_str(), vm1.path), ("vm1@a", "/run/x=y,z.sock".into()));
        assert_eq!(device("a=unix:b=unix:c").unwrap().volume, "a=unix:b");
        for wrong in ["vm1", "vm1=/run/x", "=unix:/x", "vm1=unix:", "vm1=tcp:127.0.0.1:1"] {
            assert!(device(wrong).is_err(), "{wrong}");
        }
    }
}
