//! Virtual machines that boot from clones of a golden image, with a server that is killed.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{
    Extent, disk,
    kernel::{Kernel, golden_image},
    virtual_machine::{Acknowledged, Parts, VirtualMachine, Way},
};
use crate::{
    clients::{Served, check},
    nbd::{Client, REQUEST_BYTES},
    product::{compare, path},
    test::Tally,
};

/// MiB of the golden image.
const IMAGE_MIB: u64 = 256;

/// What a volume grows to under its guest.
const GROWN_MIB: u64 = IMAGE_MIB + 64;

/// Files that each writer syncs before a kill.
const WRITES: u64 = 6;

/// The ways in which the short form is done.
const WAYS: [(&str, Way, &[&str]); 4] = [
    ("memory shared with the server, persistence strong", Way::Vhost, &["--persistence", "strong"]),
    (
        "qemu connects again, persistence strong",
        Way::QemuReconnecting { cache: true },
        &["--persistence", "strong"],
    ),
    ("qemu, guest ends with the server", Way::Qemu, &[]),
    ("the guest's own NBD client, over TCP", Way::Kernel, &[]),
];

/// One more, for the long form.
const WRITE_THROUGH: (&str, Way, &[&str]) = (
    "qemu connects again, persistence weak, a disk without a cache",
    Way::QemuReconnecting { cache: false },
    &[],
);

/// A golden image, and what starts virtual machines from clones of it.
struct Yard<'a> {
    served: Served,
    kernel: &'a Kernel,
}

/// Runs all checks.
pub(super) fn run(tally: &mut Tally, kernel: &Kernel, extent: Extent) {
    let mut yard = None;
    check(tally, "golden image on a volume, snapshot", || {
        yard = Some(Yard::new(kernel)?);
        Ok(())
    });
    let Some(mut yard) = yard else { return };
    let more = if extent.all_ways { &[WRITE_THROUGH][..] } else { &[] };
    for (n, (name, way, options)) in WAYS.iter().chain(more).enumerate() {
        if extent.only_vhost && *way != Way::Vhost {
            continue;
        }
        let name = format!("{name}: {} kills", extent.kills);
        check(tally, &name, || yard.prove(&format!("vm{n}"), *way, options, extent.kills));
    }
    check(tally, "the golden image is as it was; check", || yard.finish());
}

impl Yard<'_> {
    fn new(kernel: &Kernel) -> Result<Yard<'_>> {
        let size = format!("{IMAGE_MIB}M");
        let served = Served::new("guests", "8G", &[], &[("golden", &size)])?;
        kernel.initramfs(&served.file("initramfs"), &served.file("initramfs.cpio"))?;
        let image = served.file("golden.img");
        golden_image(&served.file("golden"), &image, IMAGE_MIB)?;
        copy_in(&served.socket, &image)?;
        disk::snapshot(&served, "golden", "v1")?;
        let mut yard = Yard { served, kernel };
        yard.served.stop()?;
        Ok(yard)
    }

    /// One virtual machine from its first boot to its last look.
    fn prove(&mut self, volume: &str, way: Way, options: &[&str], kills: u64) -> Result<()> {
        let result = self.kill_and_look(volume, way, options, kills);
        // The next one finds no server.
        let ended = self.served.stop();
        result.and(ended)
    }

    fn kill_and_look(
        &mut self,
        volume: &str,
        way: Way,
        options: &[&str],
        kills: u64,
    ) -> Result<()> {
        self.served.start_with(options)?;
        disk::clone(&self.served, "golden@v1", volume)?;
        let device = format!("{volume}=unix:{}", self.device(volume).display());
        let mut options = options.to_vec();
        if way == Way::Vhost {
            options.extend(["--vhost", &device]);
            self.served.stop()?;
            self.served.start_with(&options)?;
        }
        let options = &options[..];
        let mut acknowledged = Acknowledged::new();
        let mut machine = self.boot(way, volume)?;
        let mut at_work = 0;
        for kill in 1..=kills {
            machine.come_on(&acknowledged, WRITES)?;
            // Kills fall on different moments of the writers.
            thread::sleep(Duration::from_millis(kill * 137 % 700));
            machine.well()?;
            at_work += u64::from(disk::kill_at_work(&mut self.served)?);
            if way.goes_on() {
                thread::sleep(Duration::from_millis(kill * 311 % 1500));
                self.served.start_with(options)?;
                acknowledged = machine.acknowledged();
                self.look(volume, kill, &acknowledged)?;
            } else {
                thread::sleep(Duration::from_millis(200));
                acknowledged = machine.acknowledged();
                machine.kill();
                self.served.start_with(options)?;
                self.look(volume, kill, &acknowledged)?;
                machine = self.boot(way, volume)?;
            }
        }
        machine.come_on(&acknowledged, WRITES)?;
        machine.well()?;
        if way == Way::Vhost {
            self.trim_and_grow(&mut machine, volume)?;
        }
        let acknowledged = machine.acknowledged();
        machine.kill();
        self.look(volume, kills + 1, &acknowledged)?;
        let files: u64 = acknowledged.values().sum();
        println!(
            "    {volume}: {files} files acknowledged, all there after each kill; requests were under \
             way at {at_work} of {kills} kills"
        );
        Ok(())
    }

    /// The guest's file system says what is free, and the guest learns that its disk has grown, while
    /// both are at work.
    fn trim_and_grow(&self, machine: &mut VirtualMachine, volume: &str) -> Result<()> {
        machine.trimmed()?;
        let (onefold, store) = (&self.served.onefold, path(&self.served.store));
        ensure!(
            onefold.status(&self.served.store)?["server"]["nbd"]["trims"].as_u64() > Some(0),
            "the server knows nothing of the guest's trims"
        );
        let size = format!("{GROWN_MIB}M");
        onefold.verb(["volume", "resize", store, volume, "--size", &size])?;
        machine.grown(GROWN_MIB << 11)?;
        println!("    {volume}: trimmed, and grown to {size} under its guest");
        machine.well()
    }

    /// The socket of the device of a volume.
    fn device(&self, volume: &str) -> PathBuf {
        self.served.file(&format!("{volume}.device"))
    }

    fn boot(&self, way: Way, volume: &str) -> Result<VirtualMachine> {
        let parts = Parts {
            kernel: &self.kernel.image,
            initramfs: &self.served.file("initramfs.cpio"),
            socket: &self.served.socket,
            address: &self.served.address,
            device: &self.device(volume),
        };
        VirtualMachine::boot(&parts, way, volume, &self.served.file(&format!("{volume}.console")))
    }

    /// A clone of what is on the volume now has all that was acknowledged, in a file system that is
    /// in order.
    fn look(&self, volume: &str, kill: u64, acknowledged: &Acknowledged) -> Result<()> {
        disk::inspect(&self.served, volume, &format!("kill-{kill}"), |mount_point| {
            acknowledged.iter().try_for_each(|(writer, last)| written(mount_point, *writer, *last))
        })
        .with_context(|| format!("volume '{volume}' after kill {kill}"))
    }

    fn finish(&mut self) -> Result<()> {
        self.served.start()?;
        let image = self.served.file("golden.img");
        compare(&self.served.socket, "golden", &image)?;
        compare(&self.served.socket, "golden@v1", &image)?;
        let status = self.served.onefold.verb(["status", path(&self.served.store)])?;
        println!("{}", status.lines().map(|line| format!("      {line}\n")).collect::<String>());
        self.served.finish()
    }
}

/// All files of a writer up to the last one that was acknowledged, and its counter.
fn written(mount_point: &Path, writer: u64, last: u64) -> Result<()> {
    let directory = mount_point.join("work").join(writer.to_string());
    let count = fs::read_to_string(directory.join("count"))?;
    let count: u64 = count.trim().parse().with_context(|| format!("the counter is '{count}'"))?;
    ensure!(count >= last, "writer {writer}: the counter is {count}, {last} was acknowledged");
    for n in 1..=last {
        let found = fs::read(directory.join(n.to_string()))
            .with_context(|| format!("writer {writer}: file {n} of {last} acknowledged ones"))?;
        ensure!(found == content(writer, n), "writer {writer}: file {n} is damaged");
    }
    Ok(())
}

/// The content of a file, as the guest's program makes it.
fn content(writer: u64, n: u64) -> Vec<u8> {
    let line = format!("writer {writer} file {n}\n").into_bytes();
    line.into_iter().cycle().take((n * 7919 % 65536 + 1) as usize).collect()
}

/// Writes an image to the golden volume, but for what is zero.
fn copy_in(socket: &Path, image: &Path) -> Result<()> {
    let image = fs::read(image).context("the golden image")?;
    let mut client = Client::connect(socket, "golden")?;
    let pieces = image
        .chunks(REQUEST_BYTES)
        .enumerate()
        .map(|(n, piece)| ((n * REQUEST_BYTES) as u64, piece));
    client.write_all(pieces.filter(|(_, piece)| piece.iter().any(|&byte| byte != 0)))?;
    client.flush()?;
    client.disconnect()
}
