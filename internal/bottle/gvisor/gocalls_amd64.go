package gvisor

import (
	"encoding/binary"
	"unsafe"

	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap/sysmsg"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap/usertrap"
	"gvisor.dev/gvisor/pkg/sync"
	"gvisor.dev/gvisor/pkg/usermem"
)

// systrap, gVisor's platform, catches a system call by a signal. Where it can it then
// replaces the instruction by a jump, which costs a third. It knows the instructions of
// libc; those of Go's runtime, through which all of a Go program's calls go, are replaced
// here in the same way.

// goCall ends Syscall6 of Go's internal/runtime/syscall/linux: mov %rcx,%rsi;
// mov %rbx,%rdi; syscall.
var goCall = [8]byte{0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05}

// gofcntl is fcntl's function. A Go program's first call by Syscall6 is fcntl, to see
// whether its standard streams are open, and then it has one thread.
func gofcntl(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, no uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		replaceGoCall(t)
		return fn(t, no, args)
	}
}

// trapTable is the interface of the same name's in package usertrap, by which it knows an
// address space: memoryManager.
type trapTable interface {
	usermem.IO
	MMap(ctx context.Context, opts memmap.MMapOpts) (hostarch.Addr, error)
	FindVMAByName(ar hostarch.AddrRange, hint string) (hostarch.Addr, uint64, error)
}

// newTrap returns the address of a free trap in the table of an address space.
//
//go:linkname newTrap gvisor.dev/gvisor/pkg/sentry/platform/systrap/usertrap.(*State).newTrapLocked
func newTrap(s *usertrap.State, ctx context.Context, m trapTable) (hostarch.Addr, error)

// replaceGoCall replaces the instructions by which t made the call that it is in, if they
// are Go's, and nobody else executes them: one thread alone uses the address space, no
// debugger looks at it, and the trap can hold the address to return to.
//
// The second of the three instructions begins within the jump, so another thread could not
// be between them. A thread that gVisor sends back to the last, to make a call again, finds
// what no processor executes there; gVisor then sends it to the jump (HandleFault), and the
// other two instructions may be executed twice.
func replaceGoCall(t *kernel.Task) {
	ip := t.Arch().IP()
	if ip > 0x7fff_ffff || t.Tracer() != nil || t.ThreadGroup().Count() != 1 {
		return
	}
	at := hostarch.Addr(ip) - hostarch.Addr(len(goCall))
	var code [len(goCall)]byte
	if _, err := t.CopyInBytes(at, code[:]); err != nil || code != goCall {
		return
	}
	// Where gVisor changed, calls stay as slow as they are; the test says so.
	m := t.MemoryManager()
	users, err := reach[atomicbitops.Int32](m, "users")
	if err != nil || users.Load() != 1 {
		return
	}
	s, err := reach[*usertrap.State](m.AddressSpace(), "usertrap")
	if err != nil {
		return
	}
	mu, err := reach[sync.RWMutex](*s, "mu")
	if err != nil {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	trap, err := newTrap(*s, t, m)
	if err != nil {
		return
	}
	cc := t.OwnCopyContext(usermem.IOOpts{IgnorePermissions: true})
	if _, err := primitive.CopyByteSliceOut(cc, trap, goTrap(trap, uint32(ip))); err != nil {
		return
	}
	jump := binary.LittleEndian.AppendUint32([]byte{0x90, 0xff, 0x24, 0x25}, uint32(trap)) // nop; jmp *trap
	_, _ = primitive.CopyByteSliceOut(cc, at, jump)
}

// goTrap returns the content of a trap: its code's address, and the code. It differs from
// gVisor's own (usertrap.addTrapLocked) in what it begins with, in the register that it
// must not use, and in the number of the call, which the program has set.
func goTrap(at hostarch.Addr, back uint32) []byte {
	var m sysmsg.Msg
	le := binary.LittleEndian
	b := le.AppendUint64(nil, uint64(at)+8)
	b = append(b, goCall[:6]...)
	b = append(b, 0x65, 0xc7, 0x04, 0x25) // movl $ThreadStatePrep,%gs:State
	b = le.AppendUint32(b, uint32(unsafe.Offsetof(m.State)))
	b = le.AppendUint32(b, uint32(sysmsg.ThreadStatePrep))
	b = append(b, 0x65, 0x48, 0x89, 0x24, 0x25) // mov %rsp,%gs:AppStack
	b = le.AppendUint32(b, uint32(unsafe.Offsetof(m.AppStack)))
	b = append(b, 0x65, 0x48, 0x8b, 0x24, 0x25) // mov %gs:SyshandlerStack,%rsp
	b = le.AppendUint32(b, uint32(unsafe.Offsetof(m.SyshandlerStack)))
	b = append(b, 0x65, 0x48, 0xc7, 0x04, 0x25) // movq $back,%gs:RetAddr
	b = le.AppendUint32(b, uint32(unsafe.Offsetof(m.RetAddr)))
	b = le.AppendUint32(b, back)
	b = append(b, 0x65, 0xff, 0x24, 0x25) // jmp *%gs:Syshandler
	return le.AppendUint32(b, uint32(unsafe.Offsetof(m.Syshandler)))
}
