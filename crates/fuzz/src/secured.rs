//! NBD on a line that has to be encrypted, over a socket of the loopback address: what a client sends
//! before TLS, in its place, and by it. A session ends with the client's bytes, without a panic and
//! without endless answers.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::fs::OpenOptionsExt,
    panic,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use onefold_core::{Error, Kind};
use onefold_serve::{
    nbd::{Limits, Server},
    tls::{Authority, CA, Credentials, Holder, SERVER_CERTIFICATE, SERVER_KEY},
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::{memory::OneVolume, nbd, reach};

const SIZE: usize = 256 << 10;

/// Most bytes that answers to one input may have.
const ANSWERS_MAX: usize = 256 << 20;

/// More bytes than this are answers to commands, and not to options and handshakes alone.
const OPTIONS_ANSWERED: usize = 8192;

/// Bytes that the server says first.
const GREETING_BYTES: usize = 18;

/// Longest that the server may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(8);

/// Days for which certificates hold.
const DAYS: u32 = 2;

/// Bytes of an input before those that are sent: how they are.
const HEAD: usize = 1;

/// Panics of this process: those of the server's threads end a session and nothing else.
static PANICS: AtomicUsize = AtomicUsize::new(0);

static SITE: LazyLock<Site> = LazyLock::new(|| match Site::open() {
    Ok(site) => site,
    Err(error) => panic!("no server: {error}"),
});

/// A server whose clients need certificates, and what a client needs.
struct Site {
    address: SocketAddr,
    client: Arc<ClientConfig>,
}

impl Site {
    /// Starts a server that goes on until the process ends.
    fn open() -> Result<Site, Box<dyn std::error::Error>> {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Relaxed);
            usual(info);
        }));
        let made = Authority::make(DAYS)?;
        let authority = Authority::from_pem(&made.certificate, &made.key)?;
        let own = authority.issue(Holder::Server(&["localhost".to_owned()]), DAYS)?;
        let folder = tempfile::tempdir()?;
        let files = [
            (CA, &made.certificate),
            (SERVER_CERTIFICATE, &own.certificate),
            (SERVER_KEY, &own.key),
        ];
        for (name, text) in files {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            options.open(folder.path().join(name))?.write_all(text.as_bytes())?;
        }
        let limits = Limits {
            payload_bytes: 64 << 10,
            receive_bytes: 4096,
            read_batch_bytes: 16 << 10,
            whole_read_bytes: 32 << 10,
            extents: 8,
            waits: 4,
            ..Limits::default()
        };
        let mut server = Server::new(Arc::new(OneVolume::new(SIZE)), limits);
        server.secure(Arc::new(Credentials::read(folder.path())?));
        let address = server.add_tcp(([127, 0, 0, 1], 0).into(), false)?;
        server.start()?;
        // Dropped, it would end.
        std::mem::forget(server);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(made.certificate.as_bytes())?)?;
        let own = authority.issue(Holder::Client("fuzz"), DAYS)?;
        let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes())?;
        let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        Ok(Site { address, client: Arc::new(client) })
    }

    /// A connection that has said hello.
    fn connect(&self) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut [0; GREETING_BYTES])?;
        stream.write_all(&3_u32.to_be_bytes())?;
        Ok(stream)
    }

    /// Asks for TLS.
    fn ask_for_tls(stream: &mut TcpStream) -> io::Result<()> {
        stream.write_all(&nbd::option(5, &[]))?;
        stream.read_exact(&mut [0; 20])
    }

    /// Shakes hands, and gives what the client says then as it is sent.
    fn encrypted(&self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
        Site::ask_for_tls(stream)?;
        let name = "localhost".try_into().map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(self.client.clone(), name).map_err(io::Error::other)?;
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            tls.complete_io(stream)?;
        }
        tls.writer().write_all(bytes)?;
        tls.send_close_notify();
        let mut sealed = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut sealed)?;
        }
        Ok(sealed)
    }
}

/// One connection: behind TLS, before it, or in its place, as the first byte says.
pub fn nbd_secured(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    let (site, before) = (&*SITE, PANICS.load(Relaxed));
    // Nothing that these steps send is hostile.
    let begun = site.connect().and_then(|mut stream| {
        let sent = match how % 3 {
            0 => site.encrypted(&mut stream, bytes)?,
            1 => bytes.to_vec(),
            _ => {
                Site::ask_for_tls(&mut stream)?;
                bytes.to_vec()
            }
        };
        Ok((stream, sent))
    });
    let (stream, sent) = match begun {
        Ok(begun) => begun,
        Err(error) => panic!("a good client is sent away: {error}"),
    };
    let answered = thread::scope(|scope| {
        let answers = scope.spawn(|| answers(&stream));
        // A server that has ended the session takes no more.
        let _ = (&stream).write_all(&sent);
        let _ = stream.shutdown(Shutdown::Write);
        answers.join()
    });
    assert!(PANICS.load(Relaxed) == before, "a session panicked");
    let Ok(answered) = answered else { panic!("a session does not end") };
    let sentence = match how % 3 {
        0 => "behind TLS",
        1 => "before TLS",
        _ => "in the place of TLS",
    };
    let good = answered > OPTIONS_ANSWERED;
    let _ = reach::noted(if good { Ok(()) } else { Err(Error::new(Kind::Io, sentence)) });
}

/// The bytes of all answers, up to the end of the session.
fn answers(mut stream: &TcpStream) -> usize {
    let (mut answered, mut buffer) = (0, vec![0; 64 << 10]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return answered,
            Ok(read) => answered += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let late =
                    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                assert!(!late, "no end after {answered} bytes of answers");
                return answered;
            }
        }
        assert!(answered <= ANSWERS_MAX, "endless answers");
    }
}

/// The sessions of the plain target behind TLS; options and the first record of a client before it,
/// and in its place.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let with = |how: u8, bytes: &[u8]| [&[how; HEAD], bytes].concat();
    let sessions = nbd::examples();
    let mut all: Vec<_> =
        sessions.iter().map(|session| with(0, session.get(4..).unwrap_or_default())).collect();
    let hello = hello().unwrap_or_default();
    all.push(with(1, &[nbd::option(3, &[]), nbd::option(5, &[]), hello.clone()].concat()));
    all.push(with(1, &[nbd::option(8, &[]), nbd::option(5, b"x"), nbd::option(2, &[])].concat()));
    all.push(with(2, &hello));
    all.push(with(2, &nbd::option(3, &[])));
    all
}

/// The first record of a client.
fn hello() -> io::Result<Vec<u8>> {
    let name = "localhost".try_into().map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(SITE.client.clone(), name).map_err(io::Error::other)?;
    let mut hello = Vec::new();
    tls.write_tls(&mut hello)?;
    Ok(hello)
}
