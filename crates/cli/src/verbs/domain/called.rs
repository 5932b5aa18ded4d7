//! How domains and their stores are called.

use std::{fmt, path::Path};

/// How lists call a domain of this name; without a name it was erased.
pub(super) struct Called<'a>(pub(super) Option<&'a str>);

impl fmt::Display for Called<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.pad("(erased)"),
            Some("") => f.pad("(no name)"),
            Some(name) => f.pad(&name.escape_debug().to_string()),
        }
    }
}

pub(super) fn shown(store: &Path) -> String {
    store.display().to_string()
}
