// Package trace records what happened inside a bottle, as seen by the kernel
// that served it: programs that ran; files that were opened, examined, looked
// for in vain, written, renamed and removed; sockets; and requests for rights.
//
// Each event is a [Fact]. The backend's kernel sends facts in batches over a
// SEQPACKET socket ([NewBatch], [Fact.Append], [ParseBatch]). Outside, a
// [Collector] counts and summarises them and writes them to a bounded file.
// Every fact has a number, and each stage counts what it drops, so that a loss
// is always reported.
//
// A fact is observed unless [Claimed] is set: it comes from the kernel's own
// objects and from bytes that were copied once out of the workload's memory,
// before they were used. The workload still chooses its paths and arguments.
package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Op is the kind of event. The zero Op is invalid.
type Op uint8

// The operations. Their numbers are part of the format: never reuse one.
const (
	Exec     Op = 1  // Path: the file that was loaded; Path2: the script's, or what was asked for; Args: what it gets; Digest: of the file, if it isn't too large; UID, EUID, PPID
	Exit     Op = 2  // A: code, B: signal; of a whole process
	Fork     Op = 3  // PPID: the parent; A: clone flags; a process, not a thread
	Open     Op = 4  // A: flags of open(2), B: mode asked for
	Stat     Op = 5  //
	Access   Op = 6  // A: what was asked for (R_OK…)
	Readlink Op = 7  // Path2: where it leads
	List     Op = 8  // the first reading of a directory through one open
	Chdir    Op = 9  //
	Write    Op = 10 // the first write through one open of a file; a shared mapping that may be written counts too
	Truncate Op = 11 // A: length
	Unlink   Op = 12 //
	Rmdir    Op = 13 //
	Rename   Op = 14 // Path2: the new name; A: flags
	Link     Op = 15 // Path: the file by the name it had; Path2: the new name
	Symlink  Op = 16 // Path2: where it leads
	Mkdir    Op = 17 // A: mode
	Mknod    Op = 18 // A: mode with type, B: device
	Chmod    Op = 19 // A: mode
	Chown    Op = 20 // A: uid, B: gid; 1<<32-1 leaves it
	Utimes   Op = 21 //
	Xattr    Op = 22 // Path2: the attribute; A: 1 set, 2 removed
	Mount    Op = 23 // Path: where; Path2: source; Args: type, or the call: move_mount, open_tree, fsopen, fsmount; A: flags
	Umount   Op = 24 // A: flags
	Chroot   Op = 25 // pivot_root too, with Path2
	SetID    Op = 26 // UID, EUID: after; A: gid, B: egid after
	Caps     Op = 27 // capset, prctl of capabilities, unshare, setns, clone into namespaces; Path: the call; A: its flags or option; capset: B effective, C permitted after; prctl: B, C its arguments
	Ptrace   Op = 28 // attaching; A: request, B: the other process; process_vm_readv and writev and pidfd_getfd too, with Path
	Kill     Op = 29 // A: signal, B: the process or minus the group, 0 for pidfd_send_signal; only of other processes
	Socket   Op = 30 // A: family, B: type, C: protocol
	Connect  Op = 31 // Path: address, as in "10.0.0.1:443", "[::1]:80", "unix:/run/x" and "unix:./x" (Asked), "unix:@name"; A: family
	Bind     Op = 32 // as Connect
	Listen   Op = 33 // as Connect
	Accept   Op = 34 // as Connect; Path2: the peer
	Refused  Op = 35 // Path: the name of a system call that is not served or was not permitted, and that asks for rights: bpf, io_uring_setup, keyctl, init_module, reboot, …, or of an ioctl of a terminal that types into it; without Errno it was served after all
	Memfd    Op = 36 // Path: the name given; A: flags; an anonymous file was made
	Load     Op = 37 // a file was mapped to be executed, as libraries are; not what exec maps itself
	Send     Op = 38 // as Connect: a message to an address that it names itself; the first of each process to each address, by errno
)

// Flags qualify a fact.
type Flags uint8

const (
	// Claimed: copied from the workload's memory separately from the kernel's
	// own copy, so another thread could have changed it in between.
	Claimed Flags = 1 << iota
	// Asked: the path is the requested one, because no object exists that has
	// another. Unless Claimed is set too, the kernel used these very bytes.
	Asked
	// Miss: the name was not in the directory with which the path begins.
	Miss
	// Foreign: the object is on another file system than the bottle's root. Its
	// path holds mount points, which the workload may be able to choose.
	Foreign
	// Cut: the path or the arguments exceeded the bounds of a fact.
	Cut
	// Deleted: the object had no name any more, or never had one.
	Deleted
	// Mutable: the workload can write to the file that Digest covers, so the
	// loaded bytes may have been different, or the file may differ by now.
	Mutable
	// Special: the opened object is a device, a pipe or the like. Set only on
	// an Open that would have made or truncated a file.
	Special
)

// Bounds of one fact. Anything longer is cut and marked [Cut].
const (
	MaxPath = 4096     // bytes of Path, and of Path2
	MaxArgs = 16 << 10 // bytes of all Args
	MaxArgc = 512
	// MaxFact bounds an encoded fact, in bytes.
	MaxFact = 2*MaxPath + MaxArgs + 10*MaxArgc + 256
)

// Fact is one event. The [Op] documents the meaning of each field; a field that
// it does not name is zero.
type Fact struct {
	Seq   uint64 // counts all facts of the bottle from 1, lost ones too
	Time  int64  // nanoseconds since 1970, by the host's clock
	Op    Op
	Flags Flags
	// PID is the process (thread group) in the bottle's PID namespace, PPID its
	// parent where the operation says so.
	PID, PPID uint32
	// Errno is the call's Linux error number, 0 when it succeeded.
	Errno     uint32
	UID, EUID uint32
	A, B, C   uint64
	Path      string
	Path2     string
	Args      []string
	// Digest is the SHA-256 of the loaded file, or empty.
	Digest string // 32 raw bytes
}

// When returns the fact's time.
func (f *Fact) When() time.Time { return time.Unix(0, f.Time) }

// Observed reports whether nothing in the workload could have forged the fact.
func (f *Fact) Observed() bool { return f.Flags&Claimed == 0 }

// Append encodes f, cut to its bounds, and appends it to b.
func (f *Fact) Append(b []byte) []byte {
	fl := f.Flags
	cut := func(s string, n int) string {
		if len(s) <= n {
			return s
		}
		fl |= Cut
		return s[:n]
	}
	path, path2 := cut(f.Path, MaxPath), cut(f.Path2, MaxPath)
	args, left := f.Args, MaxArgs
	if len(args) > MaxArgc {
		args, fl = args[:MaxArgc], fl|Cut
	}
	for i, a := range args {
		if left -= len(a); left < 0 {
			// Keep the beginning of the argument that does not fit.
			args = append(append([]string(nil), args[:i]...), a[:len(a)+left])
			fl |= Cut
			break
		}
	}
	at := len(b)
	b = append(b, 0, 0, 0, byte(f.Op), byte(fl))
	for _, v := range [...]uint64{f.Seq, uint64(f.Time), uint64(f.PID), uint64(f.PPID), uint64(f.Errno), uint64(f.UID), uint64(f.EUID), f.A, f.B, f.C} {
		b = binary.AppendUvarint(b, v)
	}
	str := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	str(path)
	str(path2)
	str(f.Digest)
	b = binary.AppendUvarint(b, uint64(len(args)))
	for _, a := range args {
		str(a)
	}
	n := len(b) - at - 3
	b[at], b[at+1], b[at+2] = byte(n), byte(n>>8), byte(n>>16)
	return b
}

var errFact = errors.New("trace: malformed fact")

// parse decodes the fact at the start of b and returns the rest.
func (f *Fact) parse(b []byte) (rest []byte, err error) {
	if len(b) < 5 {
		return nil, errFact
	}
	n := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
	if n < 2 || n > MaxFact || n > len(b)-3 {
		return nil, errFact
	}
	b, rest = b[3:3+n], b[3+n:]
	*f = Fact{Op: Op(b[0]), Flags: Flags(b[1])}
	b = b[2:]
	bad := false
	num := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			bad, b = true, nil
			return 0
		}
		b = b[n:]
		return v
	}
	num32 := func() uint32 {
		v := num()
		if v > 1<<32-1 {
			bad = true
		}
		return uint32(v)
	}
	str := func(most int) string {
		n := num()
		if n > uint64(len(b)) || n > uint64(most) {
			bad, b = true, nil
			return ""
		}
		s := string(b[:n])
		b = b[n:]
		return s
	}
	f.Seq, f.Time = num(), int64(num())
	f.PID, f.PPID, f.Errno, f.UID, f.EUID = num32(), num32(), num32(), num32(), num32()
	f.A, f.B, f.C = num(), num(), num()
	f.Path, f.Path2, f.Digest = str(MaxPath), str(MaxPath), str(32)
	argc := num()
	if argc > MaxArgc {
		return nil, errFact
	}
	for range argc {
		if bad {
			break
		}
		f.Args = append(f.Args, str(MaxArgs))
	}
	if bad || len(b) != 0 || f.Op == 0 || len(f.Digest) != 0 && len(f.Digest) != 32 {
		return nil, errFact
	}
	return rest, nil
}

// A batch is one datagram: the number of facts that the sender has dropped so
// far (8 bytes, little-endian), then whole facts.
const batchHead = 8

// MaxBatch is the largest datagram, in bytes.
const MaxBatch = 128 << 10

// NewBatch starts a batch in b's memory. Append facts to it.
func NewBatch(b []byte) []byte { return append(b[:0], make([]byte, batchHead)...) }

// SetDropped sets the number of dropped facts in a batch.
func SetDropped(b []byte, dropped uint64) { binary.LittleEndian.PutUint64(b, dropped) }

// ParseBatch calls each with every fact of a datagram. each may keep the fact.
func ParseBatch(b []byte, each func(*Fact)) (dropped uint64, err error) {
	if len(b) < batchHead {
		return 0, errors.New("trace: short batch")
	}
	dropped, b = binary.LittleEndian.Uint64(b), b[batchHead:]
	for len(b) > 0 {
		f := &Fact{}
		if b, err = f.parse(b); err != nil {
			return dropped, err
		}
		each(f)
	}
	return dropped, nil
}

// FactKind groups operations for people's queries.
type FactKind string

// The kinds.
const (
	kindExec FactKind = "exec" // programs: exec, exit, fork
	KindFile FactKind = "file" // files opened, examined, written, moved, removed
	kindNet  FactKind = "net"  // sockets
	kindProc FactKind = "proc" // what processes do to each other: signals, ptrace
	KindPriv FactKind = "priv" // rights: ids, capabilities, mounts, devices, refused calls
)

type opInfo struct {
	name string
	kind FactKind
}

var ops = [...]opInfo{
	Exec: {"exec", kindExec}, Exit: {"exit", kindExec}, Fork: {"fork", kindExec},
	Open: {"open", KindFile}, Stat: {"stat", KindFile}, Access: {"access", KindFile}, Readlink: {"readlink", KindFile},
	List: {"list", KindFile}, Chdir: {"chdir", KindFile}, Write: {"write", KindFile}, Truncate: {"truncate", KindFile},
	Unlink: {"unlink", KindFile}, Rmdir: {"rmdir", KindFile}, Rename: {"rename", KindFile}, Link: {"link", KindFile},
	Symlink: {"symlink", KindFile}, Mkdir: {"mkdir", KindFile}, Mknod: {"mknod", KindPriv}, Chmod: {"chmod", KindFile},
	Chown: {"chown", KindPriv}, Utimes: {"utimes", KindFile}, Xattr: {"xattr", KindFile}, Memfd: {"memfd", KindFile}, Load: {"load", KindFile},
	Mount: {"mount", KindPriv}, Umount: {"umount", KindPriv}, Chroot: {"chroot", KindPriv},
	SetID: {"setid", KindPriv}, Caps: {"caps", KindPriv}, Ptrace: {"ptrace", kindProc}, Kill: {"kill", kindProc},
	Socket: {"socket", kindNet}, Connect: {"connect", kindNet}, Bind: {"bind", kindNet}, Listen: {"listen", kindNet}, Accept: {"accept", kindNet}, Send: {"send", kindNet},
	Refused: {"refused", KindPriv},
}

// Kind returns the group of o, or "" for an operation of a later version.
func (o Op) Kind() FactKind { return o.info().kind }

func (o Op) String() string {
	if name := o.info().name; name != "" {
		return name
	}
	return fmt.Sprintf("op%d", uint8(o))
}

func (o Op) info() opInfo {
	if int(o) < len(ops) {
		return ops[o]
	}
	return opInfo{}
}
