//! Clients that show certificates, and those that should not be let in: with one of another authority,
//! an expired one, one that was taken back, none, and without TLS.

use std::{fs, net::TcpListener, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{LIMIT, check, sample, tools::python};
use crate::{
    cleanup::Scratch,
    product::{Build, Onefold, Server, path},
    program::{program, run as run_program},
    test::Tally,
};

/// Bytes of the image that is copied.
const IMAGE_BYTES: usize = 16 << 20;

/// How long a server may take to end a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store that is served by TLS alone, and directories of certificates.
struct Served {
    onefold: Onefold,
    scratch: Scratch,
    server: Option<Server>,
    nbd: String,
    http: String,
}

impl Served {
    /// Makes a store with the volume `disk` and serves it; `onefold` is the command.
    fn new(onefold: Onefold, size: &str) -> Result<Served> {
        let scratch = Scratch::new("tls")?;
        let store = scratch.file("store");
        let volumes = [("disk", size.to_owned()), ("other", size.to_owned())];
        onefold.create(&store, "1G", &["--preallocate", "none"], &volumes)?;
        let ca = scratch.file("ca");
        onefold.verb(["tls", "init", path(&ca)])?;
        onefold.verb([
            "tls",
            "issue",
            path(&ca),
            "127.0.0.1",
            "--server",
            "--also",
            "localhost",
        ])?;
        onefold.verb(["tls", "issue", path(&ca), "own"])?;
        fs::write(
            scratch.file("access"),
            "client:own write disk\nclient:own pages\nclient:gone write disk\n",
        )?;
        // Ports that were free a moment ago.
        let port = || -> Result<String> {
            Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
        };
        let (nbd, http) = (port()?, port()?);
        let (tls, access) = (scratch.file("ca/127.0.0.1"), scratch.file("access"));
        let http_at = format!("tcp:{http}");
        let more = ["--tls", path(&tls), "--access", path(&access), "--http", &http_at];
        let server = onefold.serve(&store, &[format!("tcp:{nbd}")], &more)?;
        Ok(Served { onefold, scratch, server: Some(server), nbd, http })
    }

    /// Where a client finds its certificate.
    fn directory(&self, client: &str) -> PathBuf {
        self.scratch.file(&format!("ca/{client}"))
    }

    /// A volume, as a client of libnbd names it that shows the certificate of `client`.
    fn uri(&self, client: &str, volume: &str) -> String {
        let directory = self.directory(client);
        format!("nbds://{}/{volume}?tls-certificates={}", self.nbd, path(&directory))
    }

    /// Ends the server in order, and verifies the store.
    fn finish(&mut self) -> Result<()> {
        self.server.take().context("the server does not run")?.stop()?;
        self.onefold.check(&self.scratch.file("store")).map(drop)
    }

    /// Makes the certificates that let nobody in.
    fn make_wrong_ones(&self) -> Result<()> {
        let (ca, other) = (self.scratch.file("ca"), self.scratch.file("other-ca"));
        self.onefold.verb(["tls", "init", path(&other)])?;
        self.onefold.verb(["tls", "issue", path(&other), "own"])?;
        fs::rename(self.scratch.file("other-ca/own"), self.directory("stranger"))?;
        // It knows the server, which does not know it.
        fs::copy(
            self.scratch.file("ca/ca-cert.pem"),
            self.directory("stranger").join("ca-cert.pem"),
        )?;
        let none = self.directory("nameless");
        fs::create_dir(&none)?;
        fs::copy(self.scratch.file("ca/ca-cert.pem"), none.join("ca-cert.pem"))?;
        self.onefold.verb(["tls", "issue", path(&ca), "gone"])?;
        self.onefold.verb(["tls", "issue", path(&ca), "late"])?;
        self.make_expire("late")
    }

    /// Has the certificate of a client expire yesterday.
    fn make_expire(&self, client: &str) -> Result<()> {
        let (directory, request) = (self.directory(client), self.scratch.file("request.pem"));
        let (key, certificate) =
            (directory.join("client-key.pem"), directory.join("client-cert.pem"));
        let extensions = self.scratch.file("extensions");
        fs::write(
            &extensions,
            format!("subjectAltName=URI:onefold:client/{client}\nextendedKeyUsage=clientAuth\n"),
        )?;
        let subject = format!("/CN={client}");
        openssl(&["req", "-new", "-key", path(&key), "-subj", &subject, "-out", path(&request)])?;
        openssl(&[
            "x509",
            "-req",
            "-in",
            path(&request),
            "-CA",
            path(&self.scratch.file("ca/ca-cert.pem")),
            "-CAkey",
            path(&self.scratch.file("ca/ca-key.pem")),
            "-CAcreateserial",
            "-days",
            "-1",
            "-extfile",
            path(&extensions),
            "-out",
            path(&certificate),
        ])
    }

    /// Takes a certificate back, and has the server read that.
    fn revoke(&self, client: &str) -> Result<()> {
        let ca = self.scratch.file("ca");
        self.onefold.verb(["tls", "revoke", path(&ca), client])?;
        fs::copy(ca.join("ca-crl.pem"), ca.join("127.0.0.1/ca-crl.pem"))?;
        let server = self.server.as_ref().context("the server does not run")?;
        server.signal(Signal::HUP);
        let begun = std::time::Instant::now();
        while !server.said().contains("read the rights again") {
            ensure!(
                begun.elapsed() < PATIENCE,
                "the server does not hear SIGHUP:\n{}",
                server.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn openssl(arguments: &[&str]) -> Result<()> {
    client("openssl", arguments).map(drop)
}

fn client(name: &str, arguments: &[&str]) -> Result<String> {
    let mut command = program(name);
    command.args(arguments);
    run_program(command, LIMIT)
}

/// Runs all checks.
pub(super) fn run(tally: &mut Tally) -> Result<()> {
    let mut served = Served::new(Onefold::build(Build::Test)?, "64M")?;
    sample(&served.scratch.file("image.raw"), IMAGE_BYTES)?;
    served.make_wrong_ones()?;
    let all: [(&str, fn(&Served, &str) -> Result<()>); 5] = [
        ("nbdinfo", nbdinfo),
        ("nbdcopy in and out", nbdcopy),
        ("nbdsh", nbdsh),
        ("qemu-img", qemu_img),
        ("curl", curl),
    ];
    for (name, run) in &all {
        check(tally, &format!("{name} by TLS"), || run(&served, "own"));
    }
    check(tally, "a certificate that is taken back, by TLS", || {
        nbdinfo(&served, "gone")?;
        served.revoke("gone")
    });
    for (name, run) in &all {
        check(tally, &format!("{name} is refused with a wrong certificate or none"), || {
            for wrong in ["stranger", "nameless", "gone", "late"] {
                ensure!(run(&served, wrong).is_err(), "the server lets in '{wrong}'");
            }
            run(&served, "own")
        });
    }
    check(tally, "clients without TLS get nothing", || without_tls(&served));
    check(tally, "a volume of another client is none", || {
        ensure!(client("nbdinfo", &[&served.uri("own", "other")]).is_err(), "it opens");
        let list = client("nbdinfo", &["--list", &served.uri("own", "")])?;
        ensure!(list.contains("\"disk\"") && !list.contains("\"other\""), "{list}");
        Ok(())
    });
    check(tally, "the store is clean and whole after TLS", || served.finish());
    Ok(())
}

fn without_tls(served: &Served) -> Result<()> {
    let pages = format!("http://{}/metrics", served.http);
    let plain = format!("nbd://{}/disk", served.nbd);
    for (name, arguments) in [
        ("nbdinfo", vec![plain.as_str()]),
        ("qemu-img", vec!["info", &plain]),
        ("curl", vec!["--fail", "--max-time", "20", pages.as_str()]),
    ] {
        ensure!(client(name, &arguments).is_err(), "{name} is let in without TLS");
    }
    Ok(())
}

fn nbdinfo(served: &Served, of: &str) -> Result<()> {
    let info = client("nbdinfo", &[&served.uri(of, "disk")])?;
    ensure!(info.contains("with TLS") && info.contains("export-size: 67108864"), "{info}");
    Ok(())
}

fn nbdcopy(served: &Served, of: &str) -> Result<()> {
    let (image, back) = (served.scratch.file("image.raw"), served.scratch.file("back.raw"));
    let uri = served.uri(of, "disk");
    client("nbdcopy", &["--flush", "--connections=4", "--requests=16", path(&image), &uri])?;
    client("nbdcopy", &[&uri, path(&back)])?;
    let (image, back) = (fs::read(image)?, fs::read(back)?);
    ensure!(image[..] == back[..IMAGE_BYTES], "what came back differs");
    Ok(())
}

fn nbdsh(served: &Served, of: &str) -> Result<()> {
    let (host, port) = served.nbd.rsplit_once(':').context("a port")?;
    let script = format!(
        "h = nbd.NBD()\nh.set_tls(nbd.TLS_REQUIRE)\nh.set_tls_certificates('{}')\nh.set_export_name('disk')\n\
         h.connect_tcp('{host}', '{port}')\nassert h.get_tls_negotiated()\n\
         h.pwrite(b'x' * 100000, 4096, nbd.CMD_FLAG_FUA)\n\
         assert h.pread(100000, 4096) == b'x' * 100000\nh.flush()\nh.shutdown()\n",
        path(&served.directory(of))
    );
    client(python(), &["-m", "nbd", "-n", "-c", &script]).map(drop)
}

fn qemu_img(served: &Served, of: &str) -> Result<()> {
    let (host, port) = served.nbd.rsplit_once(':').context("a port")?;
    let object =
        format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", path(&served.directory(of)));
    let image = format!("driver=nbd,host={host},port={port},export=disk,tls-creds=tls0");
    let back = served.scratch.file("qemu.raw");
    client("qemu-img", &["info", "--object", &object, "--image-opts", &image])?;
    client(
        "qemu-img",
        &["convert", "--object", &object, "--image-opts", &image, "-O", "raw", path(&back)],
    )
    .map(drop)
}

fn curl(served: &Served, of: &str) -> Result<()> {
    let directory = served.directory(of);
    let file = |name: &str| path(&directory.join(name)).to_owned();
    let (certificate, key, ca) =
        (file("client-cert.pem"), file("client-key.pem"), file("ca-cert.pem"));
    let mut arguments =
        vec!["--fail", "--silent", "--show-error", "--max-time", "20", "--cacert", &ca];
    if of != "nameless" {
        arguments.extend(["--cert", &certificate, "--key", &key]);
    }
    let at = format!("https://{}/metrics", served.http);
    let figures = client("curl", &[&arguments[..], &[&at]].concat())?;
    ensure!(figures.contains("onefold_volume_size_bytes{volume=\"other\"}"), "{figures}");
    Ok(())
}
