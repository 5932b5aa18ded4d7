//! The options for the quota and the reserve of a domain.

use clap::Args;
use onefold::parts::control::Request;
use onefold_console::size::Size;

use crate::verbs::volume::bytes_or_none;

/// The quota and the reserve of a domain.
#[derive(Debug, Args)]
pub(super) struct Limits {
    /// Most bytes that may be stored in it, rounded up to 4 KiB, or none. Block stores only
    #[arg(long, value_name = "SIZE", value_parser = bytes_or_none)]
    pub(super) quota: Option<Size>,
    /// Bytes that are kept for it, rounded up to 4 KiB, or none. Block stores only
    #[arg(long, value_name = "SIZE", value_parser = bytes_or_none)]
    pub(super) reserve: Option<Size>,
}

impl Limits {
    pub(super) fn are_given(&self) -> bool {
        self.quota.is_some() || self.reserve.is_some()
    }

    /// The request that gives them to a domain.
    pub(super) fn request(&self, name: &str) -> Request {
        let bytes = |size: Option<Size>| size.map(|size| size.0);
        let (quota, reserve) = (bytes(self.quota), bytes(self.reserve));
        Request::DomainLimits { name: name.to_owned(), quota, reserve }
    }
}
