//! The workshop's verbs; `cargo xtask help` lists them.
//!
//! *Invariant:* nothing of the product depends on this crate, and this crate reaches the product
//! only from outside: by its command, its sockets, and the tests that cargo runs.

mod bench;
mod ceph;
mod chroot;
mod cleanup;
mod clients;
mod demo;
mod docs;
mod fuzz;
mod guests;
mod licences;
mod machine;
mod man;
mod nbd;
mod package;
mod packages;
mod pages;
mod paper;
mod product;
mod program;
mod s3;
mod sim;
mod soak;
mod structure;
mod test;
mod tests;
mod threads;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str =
    "cargo xtask demo                    a disk image over NBD, deduplicated, read \
                     back, and a server killed; needs no root
cargo xtask test [STEP…] [--list]   everything CI runs, or the steps named
cargo xtask sim [archive|cluster] [--seed N | --seeds A..B | --long | --bugs | --exhaust]
                                    crash and fault simulation of the real engines; --exhaust is \
                     the block engine's
cargo xtask fuzz [TARGET…] [--seconds N]
                                    hostile bytes for every decoder and for sessions
cargo xtask threads [TEST]          the store's and the server's threads under a scheduler that \
                     looks for races
cargo xtask miri                    memory that native code writes to, under an interpreter; a \
                     nightly compiler
cargo xtask soak [block|archive|cluster] [--minutes N] [--seed N]
                                    everything that clients do, at full size and by chance, twenty \
                     minutes an engine; then check
cargo xtask guests [--kills N] [--seconds N]
                                    virtual machines and PostgreSQL on volumes, snapshots and \
                     clones, with a server that is killed; root
cargo xtask structure [--all]       circles of files, and what else makes the code hard to read; \
                     --all names them
cargo xtask ceph start|stop|status|test [--short] [--release 18]|chaos [--minutes N [--seed N]]
                                    a real Ceph cluster on this host, and what the cluster engine \
                     must do on it
cargo xtask bench block [--quick] [--only TEXT]
                                    speed through NBD beside qemu-nbd on a raw file; 28 GiB of \
                     free space
cargo xtask bench engine [--quick] [--only TEXT]
                                    speed of the engine alone beside io_uring on a raw file; 26 \
                     GiB of free space
cargo xtask bench counted [--quick] [PART…]
                                    device bytes, flushes, memory, opening after a kill; 34 GiB of \
                     free space
cargo xtask bench snapshots [--quick]
                                    pages and blocks that snapshots and clones cost, counted
cargo xtask bench archive [--quick] [--stream OLD,NEW] [--tree OLD.tar,NEW.tar] [--image OLD,NEW]
                                    an archive's speed and size beside restic, rustic and borg
cargo xtask bench backups [--quick] [--files N] [--nights N]
                                    backups of a directory beside restic, rustic and borg
cargo xtask bench archive-scale [--quick] [--directory PATH]
                                    opening, puts, ls and gc of archives with up to a million \
                     containers and streams
cargo xtask bench hot               the hot parts one by one
cargo xtask paper thindedup|ordermerge|global|dedupv1|rad [--quick]
                                    the experiments of a paper on device models: one minute, or ten
cargo xtask docs [--book]           writes the reference of the commands and checks all documents; \
                     --book makes the book in target/book
cargo xtask man [DIRECTORY]         the manual pages
cargo xtask package [--try | --boot]
                                    the Debian package; --try installs, uses and removes one in a \
                     bare Debian 12 (root and debootstrap); --boot tries its units under systemd \
                     (and systemd-nspawn)
cargo xtask chroot-test             demo and tests in a bare Debian 12; root and debootstrap";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((verb, rest)) = arguments.split_first() else {
        println!("{USAGE}");
        return ExitCode::from(2);
    };
    match cleanup::on_signals().and_then(|()| run(verb, rest)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask {verb}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a verb; `Ok(false)` when it found something wrong and has said so.
fn run(verb: &str, arguments: &[String]) -> Result<bool> {
    match verb {
        "demo" => demo::run(arguments),
        "test" => test::run(arguments),
        "sim" => sim::run(arguments),
        "fuzz" => fuzz::run(arguments),
        "threads" => threads::run(arguments),
        "miri" => threads::miri(),
        "ceph" => ceph::run(arguments),
        "soak" => soak::run(arguments),
        "guests" => guests::run(arguments),
        "structure" => structure::run(arguments),
        "bench" => bench::run(arguments),
        "paper" => paper::run(arguments),
        "docs" => docs::command(arguments),
        "man" => man::run(arguments),
        "package" => package::run(arguments),
        "chroot-test" => chroot::run(arguments),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(true)
        }
        other => bail!("there is no verb '{other}'\n\n{USAGE}"),
    }
}
