//! A served archive: nbdcopy both ways, fio with verification and flushes, a server that is killed,
//! puts beside all that.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};

use super::{LIMIT, check, sample};
use crate::{
    cleanup::Scratch,
    product::{Build, Onefold, Server, path, uri},
    program::{program, run as run_program},
    test::Tally,
};

/// Bytes of the image that is copied.
const IMAGE_BYTES: usize = 48 << 20;

/// An archive with two volumes, served on a UNIX socket.
pub(super) struct Served {
    pub(super) onefold: Onefold,
    pub(super) scratch: Scratch,
    pub(super) archive: PathBuf,
    pub(super) socket: PathBuf,
    server: Option<Server>,
}

impl Served {
    pub(super) fn new(options: &[&str]) -> Result<Served> {
        let onefold = Onefold::build(Build::Test)?;
        let scratch = Scratch::new("archive")?;
        let (archive, socket) = (scratch.file("archive"), scratch.file("archive.sock"));
        onefold.verb([&["create", "archive", path(&archive)], options].concat())?;
        for volume in ["disk", "other"] {
            onefold.verb(["volume", "create", path(&archive), volume, "--size", "64M"])?;
        }
        let mut served = Served { onefold, scratch, archive, socket, server: None };
        served.start()?;
        Ok(served)
    }

    pub(super) fn start(&mut self) -> Result<()> {
        self.server = Some(self.onefold.serve(
            &self.archive,
            &[format!("unix:{}", self.socket.display())],
            &[],
        )?);
        Ok(())
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.server.take().context("the server does not run")?.kill();
        Ok(())
    }

    fn uri(&self, volume: &str) -> String {
        uri(&self.socket, volume)
    }

    pub(super) fn client(&self, name: &str, arguments: &[&str]) -> Result<String> {
        run_program(self.command(name, arguments), LIMIT)
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = program(name);
        command.args(arguments).current_dir(self.scratch.path());
        command
    }

    /// The volume has the image.
    fn has_image(&self, volume: &str) -> Result<()> {
        let back = self.scratch.file("back.raw");
        self.client("nbdcopy", &[&self.uri(volume), path(&back)])?;
        let (image, back) = (std::fs::read(self.scratch.file("image.raw"))?, std::fs::read(back)?);
        ensure!(image[..] == back[..IMAGE_BYTES], "what came back differs");
        Ok(())
    }

    fn copy_in(&self, volume: &str) -> Result<()> {
        let image = self.scratch.file("image.raw");
        self.client(
            "nbdcopy",
            &["--flush", "--connections=4", "--requests=16", path(&image), &self.uri(volume)],
        )
        .map(|_| ())
    }

    fn fio(&self, arguments: &[&str]) -> Result<()> {
        let uri = format!("--uri={}", self.uri("other"));
        let always = [
            "--name=check",
            "--ioengine=nbd",
            "--output-format=terse",
            "--verify=crc32c",
            "--verify_fatal=1",
            &uri,
        ];
        self.client("fio", &[&always[..], arguments].concat()).map(|_| ())
    }
}

/// Runs all checks, with whole containers and with shards.
pub(super) fn run(tally: &mut Tally) -> Result<()> {
    use_one(tally, "archive", &["--compress", "lz4"])?;
    let nodes = Scratch::new("nodes")?;
    let directories: Vec<String> =
        (0..3).map(|n| path(&nodes.file(&format!("n{n}"))).to_owned()).collect();
    use_one(tally, "archive on three nodes", &["--nodes", &directories.join(","), "--code", "3,2"])
}

fn use_one(tally: &mut Tally, what: &str, options: &[&str]) -> Result<()> {
    let mut served = Served::new(options)?;
    sample(&served.scratch.file("image.raw"), IMAGE_BYTES)?;
    check(tally, &format!("{what}: nbdcopy in and out"), || {
        served.copy_in("disk").and_then(|()| served.has_image("disk"))
    });
    check(tally, &format!("{what}: fio with crc32c and flushes"), || {
        let limits = ["--do_verify=1", "--size=32m", "--io_size=8m"];
        for job in [
            ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--fsync=64"],
            ["--rw=randwrite", "--bs=512-64k", "--iodepth=16", "--bs_unaligned=1"],
            ["--rw=write", "--bs=128k", "--iodepth=32", "--fsync=8"],
        ] {
            served.fio(&[&limits[..], &job].concat())?;
        }
        Ok(())
    });
    check(tally, &format!("{what}: a put beside writes"), || {
        let image = served.scratch.file("image.raw");
        let mut put = served
            .onefold
            .command(["put", path(&served.archive), "image", path(&image)])
            .spawn()?;
        served.copy_in("other")?;
        ensure!(put.wait()?.success(), "the put failed");
        let back = served.scratch.file("stream.raw");
        served.onefold.verb(["get", path(&served.archive), "image", "--output", path(&back)])?;
        ensure!(
            std::fs::read(&image)? == std::fs::read(back)?,
            "the stream came back with other bytes"
        );
        Ok(())
    });
    check(tally, &format!("{what}: a killed server keeps what was flushed"), || {
        // Written and flushed; then it dies while others write.
        served.copy_in("disk")?;
        let uri = format!("--uri={}", served.uri("other"));
        let mut fio = served.command(
            "fio",
            &[
                "--name=load",
                "--ioengine=nbd",
                "--rw=randwrite",
                "--bs=64k",
                "--size=64m",
                "--time_based",
            ],
        );
        fio.args(["--runtime=30", "--iodepth=16", "--fsync=32", "--output-format=terse", &uri]);
        fio.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut fio = fio.spawn()?;
        std::thread::sleep(std::time::Duration::from_secs(2));
        served.kill()?;
        fio.wait()?;
        served.start()?;
        served.has_image("disk")
    });
    check(tally, &format!("{what}: whole afterwards, and nothing is left"), || {
        served.server.take().context("the server does not run")?.stop()?;
        let archive = path(&served.archive).to_owned();
        served.onefold.verb(["scrub", &archive])?;
        for volume in ["disk", "other"] {
            served.onefold.verb(["volume", "delete", &archive, volume])?;
        }
        served.onefold.verb(["rm", &archive, "image"])?;
        served.onefold.verb(["gc", &archive, "--keep-partial", "0"])?;
        let stats = served.onefold.status(&served.archive)?;
        ensure!(stats["stored_bytes"] == 0, "{} bytes are left of nothing", stats["stored_bytes"]);
        Ok(())
    });
    Ok(())
}
