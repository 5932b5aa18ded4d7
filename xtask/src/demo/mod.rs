//! `cargo xtask demo`: the main job on real data. Needs Rust and git, no root, and leaves nothing
//! behind.
//!
//! Two disk images of this machine's files go into one store over NBD and come back the same; the
//! server is killed while a client writes, and everything that was flushed is still there.

pub(crate) mod image;
mod killed;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    cleanup::Scratch,
    machine,
    nbd::{Client, REQUEST_BYTES},
    product::{Build, Onefold, Server, compare, path, uri},
    program::{program, run as run_program},
};

/// Bytes of files that go into the image.
const FILES_BYTES: u64 = 384 << 20;

/// Free space that it needs: the files, two images, the store.
const SPACE_BYTES: u64 = 4 << 30;

/// Longest that a copy may take.
const COPY_LIMIT: Duration = Duration::from_secs(120);

/// Other programs that the demonstration may use.
#[derive(Clone, Copy)]
pub(crate) enum Tools {
    /// The programs that are installed.
    Installed,
    /// None, as on a machine that has nothing but Rust.
    None,
}

impl Tools {
    fn have(self, program: &str) -> bool {
        matches!(self, Tools::Installed) && machine::find(program).is_some()
    }
}

/// Runs it with the command as users get it.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    ensure!(arguments.is_empty(), "demo takes no arguments");
    show(Build::Release, Tools::Installed).map(|()| true)
}

/// Runs it.
pub(crate) fn show(build: Build, tools: Tools) -> Result<()> {
    say("Building onefold: the first time this takes many minutes.");
    let onefold = Onefold::build(build)?;
    let begun = Instant::now();
    let scratch = Scratch::new("demo")?;
    let free = machine::free_bytes(scratch.path())?;
    ensure!(free >= SPACE_BYTES, "the demonstration needs {} free below target/", mib(SPACE_BYTES));

    let (first, later) = (scratch.file("first.img"), scratch.file("later.img"));
    let about = image::build(&scratch, tools, &first, &later, FILES_BYTES)?;
    say(&format!("Two disk images were made: {about}"));
    let data =
        [&first, &later].map(|image| image::data_bytes(image)).into_iter().sum::<Result<u64>>()?;

    let store = scratch.file("demo.store");
    let size = |image: &Path| -> Result<String> {
        Ok(fs::metadata(image)?.len().next_multiple_of(4096).to_string())
    };
    let volumes = [
        ("first", size(&first)?),
        ("later", size(&later)?),
        ("busy", killed::VOLUME_BYTES.to_string()),
    ];
    onefold.create(&store, "2G", &["--preallocate", "none"], &volumes)?;
    let (served, socket) = serve(&onefold, &store)?;
    say("A store was created in one file, and is served over NBD on a UNIX socket.");

    let mut stored = Vec::new();
    for (image, volume) in [(&first, "first"), (&later, "later")] {
        let started = Instant::now();
        let with = copy_in(image, tools, &socket, volume)?;
        let took = started.elapsed();
        compare(&socket, volume, image)?;
        stored.push(on_disk(&store)?);
        say(&format!(
            "Image '{volume}' was written by {with} in {:.1} s and read back the same. The store \
             takes {} on disk.",
            took.as_secs_f64(),
            mib(on_disk(&store)?)
        ));
    }

    let crash = killed::write_and_kill(served, &socket)?;
    say(&format!(
        "The server was killed (SIGKILL) while a client wrote: {} flushes had been answered.",
        crash.flushed
    ));
    let started = Instant::now();
    let (served, socket) = serve(&onefold, &store)?;
    let opened = started.elapsed();
    let newer = killed::verify(&socket, &crash)?;
    compare(&socket, "first", &first)?;
    compare(&socket, "later", &later)?;
    say(&format!(
        "Started again, it answered after {} ms. Both images are the same; every block that was \
         flushed is there ({newer} of {} blocks are newer than the last flush, which is allowed).",
        opened.as_millis(),
        killed::BLOCKS
    ));
    served.stop()?;
    let status = onefold.verb(["status", path(&store)])?;
    onefold.check(&store)?;
    say("`onefold check` finds every table, reference and block in order.");

    println!("\n`onefold status` of the store, now that it is closed:\n{}", indent(&status));
    println!(
        "Written: {} of data in two images, of which the second is an edited copy of the first.",
        mib(data)
    );
    println!(
        "On disk: {} after the first image, {} after the second.",
        mib(stored[0]),
        mib(stored[1])
    );
    println!(
        "Saved:   {:.0} % of the space. It took {:.0} s.",
        saved(data, stored[1]),
        begun.elapsed().as_secs_f64()
    );
    println!("\n`onefold --help` shows how to have your own; docs/how-to tells more.");
    Ok(())
}

/// Serves the store on a socket of its own.
fn serve(onefold: &Onefold, store: &Path) -> Result<(Server, std::path::PathBuf)> {
    let socket = store.with_extension("sock");
    let served = onefold.serve(store, &[format!("unix:{}", socket.display())], &[])?;
    Ok((served, socket))
}

/// Copies an image into a volume with the best tool that is installed, flushes, and says which it
/// was.
fn copy_in(image: &Path, tools: Tools, socket: &Path, volume: &str) -> Result<&'static str> {
    let target = uri(socket, volume);
    if tools.have("nbdcopy") {
        let mut command = program("nbdcopy");
        command.args(["--flush", path(image), &target]);
        run_program(command, COPY_LIMIT)?;
        return Ok("nbdcopy");
    }
    if tools.have("qemu-img") {
        let mut command = program("qemu-img");
        command.args(["convert", "-n", "-f", "raw", "-O", "raw", path(image), &target]);
        run_program(command, COPY_LIMIT)?;
        return Ok("qemu-img");
    }
    let image = fs::read(image).context("the image")?;
    let mut client = Client::connect(socket, volume)?;
    let pieces = image
        .chunks(REQUEST_BYTES)
        .enumerate()
        .map(|(n, piece)| ((n * REQUEST_BYTES) as u64, piece));
    // A new volume is all zeroes: what is zero need not be sent.
    client.write_all(pieces.filter(|(_, piece)| piece.iter().any(|&byte| byte != 0)))?;
    client.flush()?;
    client.disconnect()?;
    Ok("a small client of ours (neither nbdcopy nor qemu-img is installed)")
}

/// Bytes that a file takes on its disk.
fn on_disk(file: &Path) -> Result<u64> {
    Ok(fs::metadata(file)?.blocks() * 512)
}

fn saved(data: u64, stored: u64) -> f64 {
    100.0 * (1.0 - stored as f64 / data as f64)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

fn say(sentence: &str) {
    println!("* {sentence}");
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
