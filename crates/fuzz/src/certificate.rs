//! The certificate of a client: whatever an authority wrote into it, it has one name, and the three
//! kinds of names never meet.

use onefold_serve::tls::{Authority, CLIENT, Holder, Identity};
use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::reach;

/// Days for which examples hold.
const DAYS: u32 = 30;

/// One certificate.
pub fn certificate(data: &[u8]) {
    let certificate = CertificateDer::from(data);
    let name = Identity::name_of(&certificate);
    assert!(Identity::of(&certificate) == Identity::named(&name), "{name}");
    let of_client = name.strip_prefix(CLIENT).is_some_and(|name| !name.is_empty());
    let of_host = name.strip_prefix("dns:").is_some_and(|host| {
        !host.is_empty() && !host.contains('*') && !host.bytes().any(|b| b.is_ascii_uppercase())
    });
    let of_hash = name.strip_prefix("sha256:").is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    assert!(of_client || of_host || of_hash, "{name:?}");
    let kind = if of_hash { "it has no name of its own" } else { "" };
    let _ = reach::is((!of_hash).then_some(()), kind);
}

/// Certificates of an authority of ours.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let issue = || {
        let made = Authority::make(DAYS).ok()?;
        let authority = Authority::from_pem(&made.certificate, &made.key).ok()?;
        let host = ["backup.example".to_owned()];
        let both = [host[0].clone(), "other.example".to_owned()];
        let holders = [Holder::Client("vm-host"), Holder::Server(&host), Holder::Server(&both)];
        let issued = holders.into_iter().filter_map(|holder| authority.issue(holder, DAYS).ok());
        let issued = issued.chain([made]);
        let der = |text: String| CertificateDer::from_pem_slice(text.as_bytes()).ok();
        Some(issued.filter_map(|made| Some(der(made.certificate)?.to_vec())).collect())
    };
    issue().unwrap_or_default()
}
