package microvm

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/hostexec"
)

// machine describes a virtual machine to its monitor.
type machine struct {
	kernel, initrd string
	memory         int64 // MiB
	cpus           int
	emulated       bool
	wire           *os.File // nil: no network card
	mac            string
	mtu            uint32
	control        *os.File // the guest program's stream
	disks          []disk
	uid, gid       int // of the monitor, if carboy is root
}

// disk is a file that the machine sees as a disk of that serial number.
type disk struct {
	serial   string
	file     *os.File
	writable bool
}

// firstFD is the first descriptor that a sealed program inherits.
const firstFD = 3

// Bounds of QEMU, which a hostile machine may have taken over.
const (
	// ownThreads are its threads beside those of the processors: up to 64 read and write
	// disks.
	ownThreads = 80
	// ownAddresses, in bytes, is its address space beside the machine's memory and the
	// stacks. What it translates for an emulated processor takes 1 GiB.
	ownAddresses = 3 << 30
	// ownFiles are descriptors: KVM needs two for each queue of a device.
	ownFiles = 1024
)

// limits returns the bounds of QEMU. It can make no file larger than the machine's disk.
func (m *machine) limits() (hostexec.SealedLimits, error) {
	threads := uint64(ownThreads + m.cpus)
	l := hostexec.SealedLimits{Memory: uint64(m.memory)*mib + ownAddresses + threads*hostexec.SealedStack, Files: ownFiles, Threads: threads}
	for _, d := range m.disks {
		if d.writable {
			fi, err := d.file.Stat()
			if err != nil {
				return l, err
			}
			l.FileSize = max(l.FileSize, uint64(fi.Size()))
		}
	}
	return l, nil
}

// start starts QEMU. All that it has are descriptors: no option names a file of the host.
func (m *machine) start(ctx context.Context, r *hostexec.Runner) (*hostexec.SealedProcess, error) {
	args, files := m.command()
	limits, err := m.limits()
	if err != nil {
		return nil, err
	}
	s := hostexec.Sealed{
		Program: hostexec.Qemu, Args: args, Files: files, UID: m.uid, GID: m.gid, Limits: limits,
		Binds: []hostexec.Bind{{Source: m.kernel, Target: hostexec.SealedKernel}, {Source: m.initrd, Target: hostexec.SealedInitrd}},
	}
	if !m.emulated {
		s.Binds = append(s.Binds, hostexec.Bind{Source: "/dev/kvm", Target: "/dev/kvm", Device: true})
		// Root's bottles run as an id that owns nothing, so the device's group lets it in.
		var st unix.Stat_t
		if err := unix.Stat("/dev/kvm", &st); err != nil {
			return nil, err
		}
		if os.Geteuid() == 0 && st.Mode&0o060 == 0o060 && st.Gid != 0 {
			s.GID = int(st.Gid)
		}
	}
	return r.StartSealed(ctx, s)
}

// kernelLine returns the kernel's command line. An emulated processor's clock can't be
// measured against the emulated timer on a busy host, so the host's frequency is told.
// The last word tells the programs of escape-test where they are.
func (m *machine) kernelLine() string {
	line := "console=ttyS0 quiet reboot=t panic=-1 random.trust_cpu=on carboy.bottle=1"
	if !m.emulated {
		return line
	}
	return line + fmt.Sprintf(" tsc_early_khz=%d tsc=reliable no_timer_check nokaslr mitigations=off cryptomgr.notests", clockKHz())
}

// clockKHz returns the frequency of this machine's time stamp counter, about.
func clockKHz() int {
	const usual = 2_000_000
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return usual
	}
	for line := range strings.Lines(string(b)) {
		if key, v, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "cpu MHz" {
			if mhz, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil && mhz > 100 {
				return int(mhz * 1000)
			}
		}
	}
	return usual
}

// command returns QEMU's arguments and the descriptors that they speak of.
func (m *machine) command() (args []string, files []*os.File) {
	add := func(a ...string) { args = append(args, a...) }
	give := func(f *os.File) int {
		files = append(files, f)
		return firstFD + len(files) - 1
	}
	accel, cpu := "kvm", "host"
	if m.emulated {
		accel, cpu = "tcg,thread=multi", "max"
	}
	// Virtual machines inside this one, and counters, would only be more of the host's kernel
	// to attack.
	add("-accel", accel, "-cpu", cpu+",-vmx,-svm,pmu=off", "-M", "microvm", "-m", strconv.FormatInt(m.memory, 10), "-smp", strconv.Itoa(m.cpus),
		"-no-reboot", "-nodefaults", "-no-user-config", "-display", "none", "-global", "virtio-mmio.force-legacy=false",
		"-kernel", hostexec.SealedKernel, "-initrd", hostexec.SealedInitrd,
		"-append", m.kernelLine(),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-device", "-chardev", fmt.Sprintf("socket,id=control,fd=%d", give(m.control)),
		"-device", "virtserialport,chardev=control,name=carboy")
	if m.wire != nil {
		add("-netdev", fmt.Sprintf("dgram,id=wire,local.type=fd,local.str=%d", give(m.wire)),
			"-device", fmt.Sprintf("virtio-net-device,netdev=wire,mac=%s,host_mtu=%d", m.mac, m.mtu))
	}
	for i, d := range m.disks {
		node, mode := fmt.Sprintf("disk%d", i), "read-only=on"
		if d.writable {
			mode = "read-only=off,discard=unmap"
		}
		add("-add-fd", fmt.Sprintf("fd=%d,set=%d", give(d.file), i+1),
			"-blockdev", fmt.Sprintf("driver=file,node-name=file%d,filename=/dev/fdset/%d,%s,locking=off,cache.no-flush=on", i, i+1, mode),
			"-blockdev", fmt.Sprintf("driver=raw,node-name=%s,file=file%d,%s", node, i, mode),
			"-device", fmt.Sprintf("virtio-blk-device,drive=%s,serial=%s", node, d.serial))
	}
	add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	return args, files
}
