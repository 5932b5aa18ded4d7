//! Which texts are addresses of places that are not paths of this host.

use std::path::Path;

use super::far::is_address;

/// How addresses of buckets begin.
pub(super) const S3_SCHEME: &str = "s3://";

/// How addresses of directories that stand for buckets begin.
pub(super) const DIRECTORY_SCHEME: &str = "bucket:";

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
