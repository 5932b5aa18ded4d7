//! The release of a Ceph cluster, and those with which Onefold was tried.

use serde_json::{Value, json};

use super::connection::Connection;

/// Releases of Ceph with which `cargo xtask ceph test` passed.
pub const TRIED: [u32; 2] = [16, 18];

impl Connection {
    /// A sentence about a cluster whose release is none with which Onefold was tried; nothing when its monitors do not
    /// say which one it is.
    #[must_use]
    pub fn untried(&self) -> Option<String> {
        let told = self.command(&json!({ "prefix": "version", "format": "json" })).ok()?;
        let release = release_of(&told)?;
        if TRIED.contains(&release) {
            return None;
        }
        let tried = TRIED.map(|release| release.to_string()).join(" and ");
        Some(format!(
            "the cluster runs Ceph {release}; Onefold was tried with Ceph {tried}: try it on pools whose data you can lose first"
        ))
    }
}

/// The number of the release in what monitors say, like `ceph version 18.2.7 (...) reef (stable)`.
fn release_of(told: &Value) -> Option<u32> {
    let version = told["version"].as_str()?.strip_prefix("ceph version ")?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_the_first_number_of_a_version() {
        let release = |version: &str| release_of(&json!({ "version": version }));
        assert_eq!(release("ceph version 16.2.15 (618f440) pacific (stable)"), Some(16));
        assert_eq!(release("ceph version 20.1.0-5 (x) tentacle (dev)"), Some(20));
        assert_eq!(release("ceph version Development (no_version)"), None);
        assert_eq!(release_of(&json!({})), None);
    }
}
