//! The user and the configuration, from the variable `CEPH_ARGS`.
//!
//! librados reads options of the configuration from this variable by itself. The user and the
//! configuration file must be known before it starts, so this module reads them.

use std::path::PathBuf;

use onefold_core::{Error, Kind, Result};

/// The user that Ceph's own commands are, too, when nobody says otherwise.
const USER: &str = "admin";

/// The parts of `CEPH_ARGS` that are used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// The user without `client.`.
    pub(super) user: String,
    /// The configuration file.
    pub(super) configuration: Option<PathBuf>,
}

impl Said {
    /// Reads `--id NAME`, `--user NAME`, `--name client.NAME` and `--conf FILE`, in the ways that
    /// Ceph's commands know; the last one counts.
    ///
    /// # Errors
    /// `InvalidInput` for a user that is no client.
    pub(super) fn of(arguments: &str) -> Result<Said> {
        let mut said = Said { user: USER.into(), configuration: None };
        let mut words = arguments.split_ascii_whitespace();
        while let Some(word) = words.next() {
            let (option, value) =
                word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
            if !["--id", "-i", "--user", "--name", "-n", "--conf", "-c"].contains(&option) {
                continue;
            }
            let value = value.or_else(|| words.next()).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| {
                Error::new(Kind::InvalidInput, format!("CEPH_ARGS: nothing follows {option}"))
            })?;
            match option {
                "--conf" | "-c" => said.configuration = Some(value.into()),
                "--name" | "-n" => match value.strip_prefix("client.") {
                    Some(user) => said.user = user.into(),
                    None => {
                        return Err(Error::new(
                            Kind::InvalidInput,
                            format!("CEPH_ARGS: {option} is client.NAME, not {value}"),
                        ));
                    }
                },
                _ => said.user = value.into(),
            }
        }
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_said_in_the_ways_of_ceph() {
        let said = |user: &str, file: Option<&str>| Said {
            user: user.into(),
            configuration: file.map(PathBuf::from),
        };
        assert_eq!(Said::of("").unwrap(), said("admin", None));
        for arguments in [
            "--id one",
            "--id=one",
            "-i one",
            "--user one",
            "--name client.one",
            "-n client.one",
            "--id two --debug-ms=1 --id  one",
        ] {
            assert_eq!(Said::of(arguments).unwrap(), said("one", None), "{arguments}");
        }
        assert_eq!(
            Said::of("--debug_ms 1 -c /a/b.conf --name=client.a.b").unwrap(),
            said("a.b", Some("/a/b.conf"))
        );
        for wrong in ["--id", "--id=", "-n osd.1"] {
            assert_eq!(Said::of(wrong).unwrap_err().kind(), Kind::InvalidInput, "{wrong}");
        }
    }
}
