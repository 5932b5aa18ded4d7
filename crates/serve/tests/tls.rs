//! TLS from outside: what a client can do before it, by it, and after its right is gone.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod volumes;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use onefold_core::Kind;
use onefold_serve::http;
use onefold_serve::nbd::{Limits, Peer, Right, Rights, Server};
use onefold_serve::tls::{
    Authority, CA, CA_LIST, Credentials, Holder, Identity, Made, SERVER_CERTIFICATE, SERVER_KEY,
};
use raw_client::*;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::aws_lc_rs};
use volumes::MemoryExports;

const STARTTLS: u32 = 5;
const ERR_TLS_REQD: u32 = 0x8000_0005;
const LIST: u32 = 3;
const GO: u32 = 7;

/// `own` has the volume `disk`, while it may; all others have nothing.
struct OwnAlone(AtomicBool);

impl Rights for OwnAlone {
    fn right(&self, peer: Peer, volume: &str) -> Right {
        let own = Peer::Certificate(Identity::named("onefold:client/own"));
        match peer == own && volume == "disk" && self.0.load(SeqCst) {
            true => Right::Write,
            false => Right::Nothing,
        }
    }
}

/// A server whose clients need certificates.
struct Secured {
    server: Server,
    address: SocketAddr,
    credentials: Arc<Credentials>,
    rights: Arc<OwnAlone>,
    authority: Authority,
    ca: String,
    ca_key: String,
    dir: tempfile::TempDir,
}

/// The name of an authority that Onefold made.
fn common_name(certificate: &[u8]) -> String {
    let begins = b"Onefold authority ";
    let at = certificate.windows(begins.len()).position(|bytes| bytes == begins).unwrap();
    String::from_utf8(certificate[at..at + begins.len() + 8].to_vec()).unwrap()
}

fn write(dir: &Path, name: &str, text: &str, mode: u32) {
    let path = dir.join(name);
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, text).unwrap();
    std::fs::File::open(&path)
        .unwrap()
        .set_permissions(std::fs::Permissions::from_mode(mode))
        .unwrap();
}

fn secured(limits: Limits) -> Secured {
    let made = Authority::make(30).unwrap();
    let authority = Authority::from_pem(&made.certificate, &made.key).unwrap();
    let own = authority.issue(Holder::Server(&["localhost".to_owned()]), 30).unwrap();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), CA, &made.certificate, 0o600);
    write(dir.path(), SERVER_CERTIFICATE, &own.certificate, 0o600);
    write(dir.path(), SERVER_KEY, &own.key, 0o600);
    let credentials = Arc::new(Credentials::read(dir.path()).unwrap());
    let rights = Arc::new(OwnAlone(AtomicBool::new(true)));
    let (exports, _) = MemoryExports::one(4 << 20);
    let mut server = Server::with_rights(exports, rights.clone(), limits);
    server.secure(credentials.clone());
    let address = server.add_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
    server.start().unwrap();
    Secured {
        server,
        address,
        credentials,
        rights,
        authority,
        ca: made.certificate,
        ca_key: made.key,
        dir,
    }
}

impl Secured {
    fn client(&self, name: &str) -> Made {
        self.authority.issue(Holder::Client(name), 30).unwrap()
    }

    /// A certificate that ended yesterday.
    fn expired(&self, name: &str) -> Made {
        let ca_key = rcgen::KeyPair::from_pem(&self.ca_key).unwrap();
        let ca = CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap();
        let mut own = rcgen::CertificateParams::default();
        own.distinguished_name = rcgen::DistinguishedName::new();
        own.distinguished_name.push(rcgen::DnType::CommonName, common_name(&ca));
        let issuer = rcgen::Issuer::new(own, ca_key);
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let uri = format!("onefold:client/{name}").as_str().try_into().unwrap();
        params.subject_alt_names = vec![rcgen::SanType::URI(uri)];
        let key = rcgen::KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &issuer).unwrap();
        Made { certificate: made.pem(), key: key.serialize_pem(), name: String::new() }
    }

    /// A connection that has said hello and nothing else.
    fn plain(&self) -> TcpStream {
        self.greeted().unwrap()
    }

    /// The same, or an error when the server has no place for one more.
    fn greeted(&self) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        stream.write_all(&3_u32.to_be_bytes())?;
        Ok(stream)
    }

    /// A connection by TLS; it has not been used for anything.
    fn by_tls(&self, made: Option<&Made>) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        self.by_tls_on(self.plain(), made)
    }

    /// The same on a connection that was used before.
    fn by_tls_on(
        &self,
        mut stream: TcpStream,
        made: Option<&Made>,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        assert_eq!(option_end(&mut stream, STARTTLS, &[])?, ACK);
        Ok(StreamOwned::new(self.session(made), stream))
    }

    /// A client's side of TLS, which has sent nothing yet.
    fn session(&self, made: Option<&Made>) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let config = match made {
            None => config.with_no_client_auth(),
            Some(made) => {
                let chain =
                    vec![CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(made.key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
    }
}

/// Sends an option; gives the kind of the last reply.
fn option_end(stream: &mut (impl Read + Write), option: u32, data: &[u8]) -> io::Result<u32> {
    stream.write_all(&option_bytes(option, data))?;
    stream.flush()?;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let (kind, length) = (be32(&head[12..]), be32(&head[16..]));
        stream.read_exact(&mut vec![0; length as usize])?;
        if kind == ACK || kind >= 1 << 31 {
            return Ok(kind);
        }
    }
}

/// True when the server has closed the connection.
fn is_closed(stream: &mut impl Read) -> bool {
    let mut one = [0];
    match stream.read(&mut one) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}

#[test]
fn rule_37_before_tls_there_is_nothing_but_the_way_to_it() {
    let secured = secured(Limits::default());
    let mut stream = secured.plain();
    for option in [LIST, 6, GO, 8, 9, 10, 11, 77] {
        assert_eq!(option_end(&mut stream, option, &info_data("disk", &[])).unwrap(), ERR_TLS_REQD);
    }
    assert_eq!(option_end(&mut stream, STARTTLS, b"x").unwrap(), ERR_INVALID);
    assert_eq!(option_end(&mut stream, 2, &[]).unwrap(), ACK);
    assert!(is_closed(&mut stream));
    // EXPORT_NAME has no refusal but the end.
    let mut stream = secured.plain();
    stream.write_all(&option_bytes(1, b"disk")).unwrap();
    assert!(is_closed(&mut stream));
}

#[test]
fn rule_37_plain_bytes_behind_starttls_end_the_connection() {
    let secured = secured(Limits::default());
    let mut stream = secured.plain();
    let injected =
        [option_bytes(STARTTLS, &[]), option_bytes(GO, &info_data("disk", &[]))].concat();
    stream.write_all(&injected).unwrap();
    let mut answered = Vec::new();
    let _ = stream.read_to_end(&mut answered);
    assert_eq!(answered, [] as [u8; 0], "the server answered, and waits for a handshake");
}

#[test]
fn rule_37_what_was_said_before_tls_counts_for_nothing() {
    let secured = secured(Limits::default());
    let mut stream = secured.plain();
    for (option, data) in [(8, vec![]), (10, meta_data("disk", &["base:allocation"])), (11, vec![])]
    {
        option_end(&mut stream, option, &data).unwrap();
    }
    let mut stream = secured.by_tls_on(stream, Some(&secured.client("own"))).unwrap();
    assert_eq!(option_end(&mut stream, 9, &meta_data("disk", &[])).unwrap(), ERR_INVALID, "simple");
    assert_eq!(option_end(&mut stream, 8, &[]).unwrap(), ACK, "not structured yet");
    assert_eq!(option_end(&mut stream, GO, &info_data("disk", &[])).unwrap(), ACK);
    let status = request_bytes(Mode::Structured, 0, BLOCK_STATUS, 3, 0, 4096);
    stream.write_all(&status).unwrap();
    stream.flush().unwrap();
    let mut chunk = [0; 24];
    stream.read_exact(&mut chunk).unwrap();
    assert_eq!((be16(&chunk[6..]), be32(&chunk[20..])), (32_769, 22), "no context was agreed on");
}

/// Gives a right so often, and then no more.
struct Fleeting(std::sync::atomic::AtomicI64);

impl Rights for Fleeting {
    fn right(&self, _: Peer, _: &str) -> Right {
        if self.0.fetch_sub(1, SeqCst) > 0 { Right::Write } else { Right::Nothing }
    }
}

#[test]
fn rule_38_a_right_that_is_lost_while_a_volume_is_opened_is_lost() {
    for (times, opens) in [(1, false), (2, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (exports, _) = MemoryExports::one(1 << 20);
        let rights = Arc::new(Fleeting(times.into()));
        let mut server = Server::with_rights(exports, rights, Limits::default());
        let socket = dir.path().join("s");
        server.add_unix(&socket).unwrap();
        server.start().unwrap();
        let mut raw = Raw::connect(&socket).unwrap();
        raw.send(&[&3_u32.to_be_bytes()[..], &option_bytes(GO, &info_data("disk", &[]))].concat());
        assert_eq!(raw.take(20).is_ok(), opens, "{times}");
    }
}

#[test]
fn rule_37_a_client_with_a_certificate_works_and_starts_tls_once() {
    let secured = secured(Limits::default());
    let mut stream = secured.by_tls(Some(&secured.client("own"))).unwrap();
    assert_eq!(option_end(&mut stream, STARTTLS, &[]).unwrap(), ERR_INVALID);
    assert_eq!(option_end(&mut stream, LIST, &[]).unwrap(), ACK);
    assert_eq!(option_end(&mut stream, GO, &info_data("disk", &[])).unwrap(), ACK);
    // A write and a read larger than a record, and than what is encrypted at once.
    let data: Vec<u8> = (0..400_000_u32).map(|n| (n % 251) as u8).collect();
    let length = data.len() as u64;
    stream.write_all(&request_bytes(Mode::Simple, 0, WRITE, 1, 4096, length)).unwrap();
    stream.write_all(&data).unwrap();
    stream.write_all(&request_bytes(Mode::Simple, 0, READ, 2, 4096, length)).unwrap();
    stream.flush().unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!((be32(&reply[4..]), be64(&reply[8..])), (0, 1));
    stream.read_exact(&mut reply).unwrap();
    assert_eq!((be32(&reply[4..]), be64(&reply[8..])), (0, 2));
    let mut back = vec![0; data.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == data);
    assert_eq!(stream.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!(stream.conn.tls13_tickets_received(), 0);
}

#[test]
fn rule_38_only_certificates_of_the_authority_that_hold_now_are_let_in() {
    let secured = secured(Limits::default());
    let fails = |made: Option<&Made>| {
        let mut stream = secured.by_tls(made).unwrap();
        let error = option_end(&mut stream, LIST, &[]).unwrap_err();
        error.to_string()
    };
    assert!(fails(None).contains("CertificateRequired"), "{}", fails(None));
    let other = Authority::make(30).unwrap();
    let other = Authority::from_pem(&other.certificate, &other.key).unwrap();
    let stranger = other.issue(Holder::Client("own"), 30).unwrap();
    assert!(!fails(Some(&stranger)).is_empty());
    // A server's certificate is no client's.
    let server = secured.authority.issue(Holder::Server(&["own".to_owned()]), 30).unwrap();
    assert!(!fails(Some(&server)).is_empty());
    let expired = fails(Some(&secured.expired("own")));
    assert!(expired.contains("CertificateExpired"), "{expired}");
}

#[test]
fn rule_13_anothers_certificate_opens_nothing_and_a_volume_answers_like_none() {
    let secured = secured(Limits::default());
    let mut stream = secured.by_tls(Some(&secured.client("other"))).unwrap();
    for volume in ["disk", "none"] {
        assert_eq!(option_end(&mut stream, GO, &info_data(volume, &[])).unwrap(), ERR_UNKNOWN);
    }
    stream.write_all(&option_bytes(LIST, &[])).unwrap();
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(be32(&head[12..]), ACK, "the list is empty");
}

#[test]
fn rule_38_a_key_that_others_can_read_is_refused_and_so_are_wrong_files() {
    let secured = secured(Limits::default());
    let dir = secured.dir.path();
    let key = std::fs::read_to_string(dir.join(SERVER_KEY)).unwrap();
    let refused = |kind: Kind, says: &str| {
        let error = secured.credentials.reload().unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(says), "{error}");
    };
    for mode in [0o640, 0o604, 0o602] {
        write(dir, SERVER_KEY, &key, mode);
        refused(Kind::Denied, "chmod 600");
    }
    write(dir, SERVER_KEY, &secured.client("own").key, 0o600);
    refused(Kind::InvalidInput, "it is not the key of server-cert.pem");
    write(dir, SERVER_KEY, "nothing", 0o600);
    refused(Kind::InvalidInput, "no private key");
    write(dir, SERVER_KEY, &key, 0o600);
    write(dir, CA_LIST, "nothing", 0o600);
    refused(Kind::InvalidInput, "no list");
    std::fs::remove_file(dir.join(CA_LIST)).unwrap();
    secured.credentials.reload().unwrap();
    std::fs::remove_file(dir.join(CA)).unwrap();
    refused(Kind::NotFound, CA);
}

#[test]
fn rule_38_who_loses_certificate_or_right_loses_the_connection() {
    let secured = secured(Limits::default());
    let watch = secured.server.watch();
    let open = |made: &Made| {
        let mut stream = secured.by_tls(Some(made)).unwrap();
        assert_eq!(option_end(&mut stream, GO, &info_data("disk", &[])).unwrap(), ACK);
        stream
    };
    let own = secured.client("own");
    let again = secured.client("own");
    let (mut first, mut second) = (open(&own), open(&again));
    let works = |stream: &mut StreamOwned<ClientConnection, TcpStream>| {
        let sent = stream.write_all(&request_bytes(Mode::Simple, 0, FLUSH, 7, 0, 0));
        sent.and_then(|()| stream.flush()).and_then(|()| stream.read_exact(&mut [0; 16])).is_ok()
    };
    secured.credentials.reload().unwrap();
    watch.look_again();
    assert!(works(&mut first) && works(&mut second), "nothing has changed");
    let list = secured.authority.revoke(&own.certificate, None).unwrap();
    write(secured.dir.path(), CA_LIST, &list, 0o600);
    secured.credentials.reload().unwrap();
    watch.look_again();
    assert!(!works(&mut first), "its certificate was taken back");
    assert!(works(&mut second), "another certificate of the same client");
    let mut refused = secured.by_tls(Some(&own)).unwrap();
    let error = option_end(&mut refused, LIST, &[]).unwrap_err().to_string();
    assert!(error.contains("CertificateRevoked"), "{error}");
    // The list grows.
    let longer = secured.authority.revoke(&again.certificate, Some(&list)).unwrap();
    write(secured.dir.path(), CA_LIST, &longer, 0o600);
    secured.credentials.reload().unwrap();
    assert!(secured.by_tls(Some(&own)).and_then(|mut s| option_end(&mut s, LIST, &[])).is_err());
    write(secured.dir.path(), CA_LIST, &list, 0o600);
    secured.credentials.reload().unwrap();
    watch.look_again();
    assert!(works(&mut second));
    secured.rights.0.store(false, SeqCst);
    watch.look_again();
    assert!(!works(&mut second), "its right is gone");
}

#[test]
fn rule_41_slow_handshakes_keep_nobody_out_and_end() {
    let limits = Limits { connections: 2, handshake: Duration::from_secs(4), ..Limits::default() };
    let secured = secured(limits);
    let begun = Instant::now();
    // Some are refused, while those that gave way to others end.
    let mut slow: Vec<TcpStream> = (0..30)
        .filter_map(|_| {
            let mut stream = secured.greeted().ok()?;
            let _ = option_end(&mut stream, STARTTLS, &[]);
            // The beginning of a record, which never goes on.
            let _ = stream.write_all(&[22, 3, 1, 2]);
            Some(stream)
        })
        .collect();
    assert!(slow.len() > 2, "more than there are connections");
    let own = secured.client("own");
    let mut stream = loop {
        assert!(begun.elapsed() < Duration::from_secs(20), "the client is kept out");
        let tried = secured.greeted().and_then(|plain| secured.by_tls_on(plain, Some(&own)));
        match tried {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(option_end(&mut stream, GO, &info_data("disk", &[])).unwrap(), ACK);
    assert!(slow.iter_mut().all(is_closed));
    assert!(begun.elapsed() < Duration::from_secs(30));
}

/// The first message of a client can be sent again by anybody, for nothing, and costs the server a key and a
/// signature.
#[test]
fn rule_41_handshakes_of_strangers_leave_the_processor_to_those_who_work() {
    let secured = secured(Limits::default());
    let mut hello = Vec::new();
    secured.session(None).write_tls(&mut hello).unwrap();
    let answered = || {
        let (answered, ends) = (AtomicU64::new(0), Instant::now() + Duration::from_secs(2));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while Instant::now() < ends {
                        let Ok(mut stream) = secured.greeted() else { continue };
                        let asked = option_end(&mut stream, STARTTLS, &[])
                            .and_then(|_| stream.write_all(&hello));
                        if asked.and_then(|()| stream.read_exact(&mut [0])).is_ok() {
                            answered.fetch_add(1, SeqCst);
                        }
                    }
                });
            }
        });
        answered.into_inner()
    };
    let alone = answered();
    let mut own = secured.by_tls(Some(&secured.client("own"))).unwrap();
    assert_eq!(option_end(&mut own, GO, &info_data("disk", &[])).unwrap(), ACK);
    own.write_all(&request_bytes(Mode::Simple, 0, FLUSH, 7, 0, 0)).unwrap();
    own.flush().unwrap();
    own.read_exact(&mut [0; 16]).unwrap();
    let beside = answered();
    assert!(beside > 0 && beside * 3 < alone * 2, "{alone} alone, {beside} beside one who works");
}

#[test]
fn rule_41_updates_of_keys_cost_who_asks_for_them() {
    let secured = secured(Limits::default());
    let mut stream = secured.by_tls(Some(&secured.client("own"))).unwrap();
    assert_eq!(option_end(&mut stream, GO, &info_data("disk", &[])).unwrap(), ACK);
    let mut flush = |updates: usize| -> io::Result<()> {
        for _ in 0..updates {
            stream.conn.refresh_traffic_keys().map_err(io::Error::other)?;
        }
        stream.write_all(&request_bytes(Mode::Simple, 0, FLUSH, 7, 0, 0))?;
        stream.flush()?;
        stream.read_exact(&mut [0; 16])
    };
    flush(1).unwrap();
    flush(3).unwrap();
    let began = Instant::now();
    let broken = (0..200).position(|_| flush(1).is_err());
    assert!(broken.is_some_and(|n| n < 40), "{broken:?} in {:?}", began.elapsed());
}

/// Nobody has a volume, and `own` sees the pages.
struct PagesAlone;

impl Rights for PagesAlone {
    fn right(&self, _: Peer, _: &str) -> Right {
        Right::Nothing
    }

    fn sees_pages(&self, peer: Peer) -> bool {
        peer == Peer::Certificate(Identity::named("onefold:client/own"))
    }
}

/// It has no page.
struct Empty;

impl http::Site for Empty {
    fn answer(&self, _: &str, _: http::Audience) -> http::Answer {
        http::Answer::Missing
    }
}

#[test]
fn rule_12_who_only_begins_handshakes_keeps_nobody_behind_its_address_from_pages() {
    let secured = secured(Limits::default());
    let mut pages = http::Server::new(Arc::new(Empty), Vec::new());
    pages.secure(secured.credentials.clone(), Arc::new(PagesAlone));
    let address = pages.add_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
    pages.start().unwrap();
    let (own, connect) = (secured.client("own"), || TcpStream::connect(address).unwrap());
    let (mut session, mut socket) = (secured.session(Some(&own)), connect());
    session.write_tls(&mut socket).unwrap();
    while session.is_handshaking() {
        assert!(session.read_tls(&mut socket).unwrap() > 0, "the server hung up");
        session.process_new_packets().unwrap();
    }
    // Before the client's next message comes, others begin, half of them with their first messages.
    let strangers: Vec<TcpStream> = (0..4 * http::CONNECTIONS)
        .map(|n| {
            let mut stream = connect();
            if n % 2 == 0 {
                secured.session(None).write_tls(&mut stream).unwrap();
            }
            stream
        })
        .collect();
    // The server had time to let them in.
    std::thread::sleep(Duration::from_millis(300));
    let mut stream = StreamOwned::new(session, socket);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    drop(strangers);
}
