//! Makes the certificates of a small authority: its own, those of servers and clients, and the list of
//! those that were taken back. It reads and writes no files.
//!
//! ECDSA on P-256 everywhere, X.509 version 3, and each certificate is good for one use: a client's
//! opens no server, and a server's is no client.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use onefold_core::{Error, Kind, Result, hex_digits};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::{
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, CertificateRevocationListDer, DnsName, UnixTime, pem::PemObject},
};
use sha2::{Digest, Sha256};
use webpki::{BorrowedCertRevocationList, EndEntityCert, KeyUsage};

use super::identity::{CLIENT, Identity};

/// How long before now a certificate begins to be good: clocks differ.
const BEFORE: Duration = Duration::from_secs(3600);
/// Days for which a list of certificates that were taken back says that it is good; servers of Onefold
/// use an older one, too.
const LIST_DAYS: u32 = 3650;
/// The longest name of a client.
const NAME_BYTES: usize = 64;
/// The first letters of a hash that tell authorities apart.
const MARK: usize = 8;

/// Who holds a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder<'a> {
    /// A client of this name.
    Client(&'a str),
    /// A server that clients call by these names or addresses.
    Server(&'a [String]),
}

/// A certificate and its key, as PEM files hold them.
#[derive(Clone)]
pub struct Made {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// How a list of rights calls it.
    pub name: String,
}

/// An authority: whoever has its key makes certificates.
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn failed(error: rcgen::Error) -> Error {
    Error::new(Kind::Io, format!("a certificate can't be made: {error}"))
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(Kind::InvalidInput, text)
}

/// The first moment of 1970, and so much later.
fn since_1970() -> Result<Duration> {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map(|now| Duration::from_secs(now.as_secs()))
        .map_err(|_| invalid("this machine's clock is before 1970"))
}

/// A certificate that is good from now on for so many days.
fn params(days: u32) -> Result<CertificateParams> {
    let (mut params, now) = (CertificateParams::default(), since_1970()?);
    let at = |time: Duration| date_time_ymd(1970, 1, 1) + time;
    params.not_before = at(now.saturating_sub(BEFORE));
    params.not_after = at(now + Duration::from_secs(u64::from(days) * 86_400));
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}

/// The certificate of the authority that has this key.
fn own_params(key: &KeyPair, days: u32) -> Result<CertificateParams> {
    let mut params = params(days)?;
    // Each key has a name of its own, so that a certificate names the one that signed it.
    let mut mark = hex_digits(Sha256::digest(key.subject_public_key_info()));
    mark.truncate(MARK);
    params.distinguished_name.push(DnType::CommonName, format!("Onefold authority {mark}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

impl Authority {
    /// A new authority, whose certificate is good for so many days.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn make(days: u32) -> Result<Made> {
        let key = KeyPair::generate().map_err(failed)?;
        let made = own_params(&key, days)?.self_signed(&key).map_err(failed)?;
        let name = Identity::name_of(made.der());
        Ok(Made { certificate: made.pem(), key: key.serialize_pem(), name })
    }

    /// The authority with this certificate and this key, which [`make`](Authority::make) made.
    ///
    /// # Errors
    /// `InvalidInput` when the key can't be read.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Authority> {
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|_| invalid("there is no certificate in the file of the authority"))?;
        let key = KeyPair::from_pem(key).map_err(|_| {
            invalid("there is no private key in the authority's file that can be read")
        })?;
        let params = own_params(&key, 1)?;
        Ok(Authority { certificate, issuer: Issuer::new(params, key) })
    }

    /// A new key and a certificate for it, good for so many days.
    ///
    /// # Errors
    /// `InvalidInput` when the name is none, or when the authority is not of ours or has expired.
    pub fn issue(&self, holder: Holder<'_>, days: u32) -> Result<Made> {
        let mut params = params(days)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        let (common, usage) = match holder {
            Holder::Client(name) => {
                params.subject_alt_names = vec![SanType::URI(uri_of(name)?)];
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                (Some(name), KeyUsage::client_auth())
            }
            Holder::Server(names) => {
                params.subject_alt_names =
                    names.iter().map(|name| server_name(name)).collect::<Result<_>>()?;
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
                (names.first().map(String::as_str), KeyUsage::server_auth())
            }
        };
        let common = common.ok_or_else(|| invalid("a server needs a name"))?;
        // The field has room for 64 letters; what counts are the names beside it.
        let short: String = common.chars().take(NAME_BYTES).collect();
        params.distinguished_name.push(DnType::CommonName, short);
        let key = KeyPair::generate().map_err(failed)?;
        let made = params.signed_by(&key, &self.issuer).map_err(failed)?;
        self.verify(made.der(), usage)?;
        let name = Identity::name_of(made.der());
        Ok(Made { certificate: made.pem(), key: key.serialize_pem(), name })
    }

    /// A made certificate is one that the authority's own lets in.
    fn verify(&self, made: &CertificateDer<'_>, usage: KeyUsage) -> Result<()> {
        let wrong = |error: webpki::Error| match error {
            webpki::Error::CertExpired { .. } => {
                invalid("the certificate of the authority has expired")
            }
            error => invalid(format!(
                "the authority's certificate and key are not a pair that `onefold tls init` made \
                 ({error}); issue with the program that made them"
            )),
        };
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
        let anchor = webpki::anchor_from_trusted_cert(&self.certificate).map_err(wrong)?;
        let parsed = EndEntityCert::try_from(made).map_err(wrong)?;
        let now = UnixTime::since_unix_epoch(since_1970()?);
        parsed
            .verify_for_usage(algorithms, &[anchor], &[], now, usage, None, None)
            .map(drop)
            .map_err(wrong)
    }

    /// The list of certificates that were taken back, with `certificate` and those of the list before.
    ///
    /// # Errors
    /// `InvalidInput` when one of them can't be read, or the certificate is another authority's.
    pub fn revoke(&self, certificate: &str, before: Option<&str>) -> Result<String> {
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|_| invalid("there is no certificate in the file"))?;
        let parsed = EndEntityCert::try_from(&certificate)
            .map_err(|error| invalid(format!("the certificate can't be read: {error}")))?;
        let authority = EndEntityCert::try_from(&self.certificate)
            .map_err(|error| invalid(format!("the authority can't be read: {error}")))?;
        if parsed.issuer() != authority.subject() {
            return Err(invalid("another authority issued the certificate"));
        }
        let now = date_time_ymd(1970, 1, 1) + since_1970()?;
        let mut serials = before.map_or_else(|| Ok(Vec::new()), serials_of)?;
        serials.push(parsed.serial().to_vec());
        serials.sort_unstable();
        serials.dedup();
        let revoked = |serial: Vec<u8>| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: now,
            next_update: now + Duration::from_secs(u64::from(LIST_DAYS) * 86_400),
            crl_number: SerialNumber::from(since_1970()?.as_secs()),
            issuing_distribution_point: None,
            revoked_certs: serials.into_iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(failed)
    }
}

/// The numbers of the certificates in a list.
fn serials_of(list: &str) -> Result<Vec<Vec<u8>>> {
    let wrong = |error: &dyn std::fmt::Display| {
        invalid(format!("the list of certificates that were taken back can't be read: {error}"))
    };
    let list = CertificateRevocationListDer::from_pem_slice(list.as_bytes())
        .map_err(|error| wrong(&error))?;
    let list = BorrowedCertRevocationList::from_der(&list).map_err(|error| wrong(&error))?;
    list.into_iter()
        .map(|revoked| revoked.map(|revoked| revoked.serial_number.to_vec()))
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| wrong(&error))
}

fn uri_of(name: &str) -> Result<rcgen::string::Ia5String> {
    let fits = (1..=NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && !name.starts_with(['.', '-']);
    if !fits {
        return Err(invalid(format!(
            "'{}' is no name for a client: it has 1 to {NAME_BYTES} letters, digits, '.', '_' and '-', \
             and begins with a letter, a digit or '_'",
            name.escape_debug()
        )));
    }
    [CLIENT, name].concat().try_into().map_err(failed)
}

/// A name in a server's certificate: an address or a name of DNS.
fn server_name(name: &str) -> Result<SanType> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let wrong = || {
        invalid(format!(
            "'{}' is no name for a server: give the name or the address by which clients call it",
            name.escape_debug()
        ))
    };
    DnsName::try_from(name).map_err(|_| wrong())?;
    name.try_into().map(SanType::DnsName).map_err(|_| wrong())
}
