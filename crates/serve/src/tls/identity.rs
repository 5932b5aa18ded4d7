//! The identity of a certificate: its name in a list of rights.
//!
//! *Invariant:* the three kinds of names never meet, whatever an authority writes into a certificate:
//! each has its own beginning. The common name counts for nothing.

use onefold_core::hex_digits;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};

/// The URI in a client's certificate begins with this; its name follows.
pub const CLIENT: &str = "onefold:client/";

/// The identity of a certificate: a hash of its name, so that it can be compared and copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity([u8; 32]);

impl Identity {
    /// The identity of this name: `onefold:client/NAME`, `dns:NAME` in small letters, or `sha256:` and
    /// 64 digits, which is the hash of a whole certificate.
    #[must_use]
    pub fn named(name: &str) -> Identity {
        Identity(Sha256::digest(name.as_bytes()).into())
    }

    /// The name of a certificate: its URI `onefold:client/NAME`, or else its DNS name; where there are
    /// several or none of these, the hash of the certificate.
    #[must_use]
    pub fn name_of(certificate: &CertificateDer<'_>) -> String {
        let whole = || {
            let digits = hex_digits(Sha256::digest(certificate));
            ["sha256:".to_owned(), digits].concat()
        };
        let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else { return whole() };
        let mut uris = parsed
            .valid_uri_names()
            .filter(|uri| uri.strip_prefix(CLIENT).is_some_and(|name| !name.is_empty()));
        match (uris.next(), uris.next()) {
            (Some(uri), None) => return uri.to_owned(),
            (Some(_), Some(_)) => return whole(),
            (None, _) => {}
        }
        let mut names = parsed.valid_dns_names();
        match (names.next(), names.next()) {
            (Some(name), None) if !name.contains('*') => {
                format!("dns:{}", name.to_ascii_lowercase())
            }
            _ => whole(),
        }
    }

    /// The identity of a certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Identity {
        Identity::named(&Identity::name_of(certificate))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn name_of(common: &str, names: &[SanType]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common);
        params.subject_alt_names = names.to_vec();
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Identity::name_of(made.der())
    }

    #[test]
    fn rule_39_a_certificate_is_called_by_its_uri_or_its_dns_name_or_its_hash_and_never_by_its_cn()
    {
        let uri = |text: &str| SanType::URI(text.try_into().unwrap());
        let dns = |text: &str| SanType::DnsName(text.try_into().unwrap());
        assert_eq!(
            name_of("root", &[dns("a.example"), uri("onefold:client/vm-1")]),
            "onefold:client/vm-1"
        );
        assert_eq!(
            name_of("root", &[dns("A.example"), uri("https://b.example/")]),
            "dns:a.example"
        );
        // A name of another kind never looks like one of ours.
        assert_eq!(name_of("root", &[dns("onefold.client")]), "dns:onefold.client");
        for several in [
            &[][..],
            &[dns("a.example"), dns("b.example")],
            &[dns("*.example")],
            &[uri("onefold:client/a"), uri("onefold:client/b")],
            &[uri("onefold:client/")],
        ] {
            let name = name_of("onefold:client/root", several);
            assert!(name.starts_with("sha256:") && name.len() == 71, "{name}");
        }
        assert_ne!(Identity::named("dns:a"), Identity::named("onefold:client/a"));
    }
}
