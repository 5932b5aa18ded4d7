//! Which texts are addresses of places that are not paths of this host, and what those of buckets mean.

use std::{
    fs,
    path::{Path, PathBuf},
};

use onefold_core::{Error, Kind, Result};

use super::far::is_address;

/// How addresses of buckets begin.
const S3_SCHEME: &str = "s3://";

/// How addresses of directories that stand for buckets begin.
const DIRECTORY_SCHEME: &str = "bucket:";

/// Most bytes of an address.
const ADDRESS_MAX: usize = 2048;

/// Variables of the environment with the address of a store, those that count first.
const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// True for an address of an object store.
#[must_use]
pub fn is_bucket(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    [S3_SCHEME, DIRECTORY_SCHEME].iter().any(|scheme| text.starts_with(scheme.as_bytes()))
}

/// True for an address of another host or of an object store.
#[must_use]
pub fn is_away(path: &Path) -> bool {
    is_address(path) || is_bucket(path)
}

/// Where an archive in an object store is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Address {
    /// A bucket, and a prefix without a slash at its end, which may be empty.
    S3 { bucket: String, prefix: String },
    /// A directory that stands for a bucket; the path is absolute and ends in no slash.
    Directory(PathBuf),
}

impl Address {
    /// # Errors
    /// `InvalidInput` for what is no address.
    pub(super) fn of(path: &Path) -> Result<Address> {
        let shown = path.display();
        let wrong = |why: &str| {
            let why = format!("{shown} is no address like s3://bucket/prefix: {why}");
            Error::new(Kind::InvalidInput, why)
        };
        let text = path.to_str().ok_or_else(|| wrong("it is no text"))?;
        if text.len() > ADDRESS_MAX || text.chars().any(char::is_control) {
            return Err(wrong("it is too long, or has control characters"));
        }
        if let Some(directory) = text.strip_prefix(DIRECTORY_SCHEME) {
            if directory.is_empty() {
                return Err(wrong("it names no directory"));
            }
            let absolute = std::path::absolute(directory);
            let absolute = absolute.map_err(|e| Error::from_io(shown, e))?;
            // Collected, a path has no slash at its end.
            return Ok(Address::Directory(absolute.components().collect()));
        }
        let rest = text.strip_prefix(S3_SCHEME).ok_or_else(|| wrong("it begins otherwise"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains('@') || bucket.contains(':') {
            return Err(wrong("credentials and ports are in the environment, not in an address"));
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(plain) {
            return Err(wrong("a bucket has 3 to 63 small letters, digits, dots and hyphens"));
        }
        let prefix = prefix.trim_end_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/ ".contains(c);
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let is_prefix = prefix.chars().all(plain) && prefix.split('/').all(is_part);
        if !(prefix.is_empty() || is_prefix) {
            let why = "a prefix has names of letters, digits, dots, hyphens, spaces and ~, with / between";
            return Err(wrong(why));
        }
        Ok(Address::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    /// The same for one place, however it was typed. This host's notes of the place have it as their key.
    pub(super) fn key(&self) -> String {
        let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
        self.key_at(ENDPOINTS.iter().find_map(set).as_deref())
    }

    /// The same with the address of the store.
    fn key_at(&self, endpoint: Option<&str>) -> String {
        match self {
            Address::S3 { bucket, prefix } => {
                // Two stores of one bucket's name are at two endpoints.
                let endpoint = endpoint.unwrap_or_default().trim_end_matches('/');
                format!("{S3_SCHEME}{bucket}/{prefix} {}", endpoint.to_ascii_lowercase())
            }
            Address::Directory(path) => {
                let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                format!("{DIRECTORY_SCHEME}{}", path.display())
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_bucket_and_no_credentials() {
        let of = |text: &str| Address::of(Path::new(text));
        let s3 = |bucket: &str, prefix: &str| Address::S3 {
            bucket: bucket.into(),
            prefix: prefix.into(),
        };
        assert_eq!(of("s3://backups").unwrap(), s3("backups", ""));
        assert_eq!(of("s3://backups/").unwrap(), s3("backups", ""));
        assert_eq!(of("s3://my.backups-1/web/one/").unwrap(), s3("my.backups-1", "web/one"));
        assert_eq!(of("bucket:/srv/b").unwrap(), Address::Directory("/srv/b".into()));
        for text in [
            "s3://",
            "s3://ab",
            "s3://Backups",
            "s3://key:secret@backups/x",
            "s3://backups:9000/x",
            "s3://backups//x",
            "s3://backups/../x",
            "s3://backups/a?b",
            "s3://backups/a\nb",
            "bucket:",
        ] {
            assert_eq!(of(text).unwrap_err().kind(), Kind::InvalidInput, "{text}");
        }
    }

    #[test]
    fn one_place_has_one_key_however_it_is_typed() {
        let key = |text: &str, endpoint| Address::of(Path::new(text)).unwrap().key_at(endpoint);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        let real = fs::canonicalize(dir.path()).unwrap();
        for text in
            [format!("bucket:{path}"), format!("bucket:{path}/"), format!("bucket:{path}/.")]
        {
            assert_eq!(key(&text, None), format!("bucket:{}", real.display()));
        }
        assert_eq!(key("bucket:none/", None), key("bucket:./none", None));
        assert!(key("bucket:none", None).starts_with("bucket:/"));
        let here = key("s3://backups/a/", Some("https://Store.example/"));
        assert_eq!(here, key("s3://backups/a", Some("https://store.example")));
        assert_ne!(here, key("s3://backups/a", Some("https://other.example")));
        assert_ne!(here, key("s3://backups/a", None));
    }
}
