package kvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests and structures of Documentation/virt/kvm/api.rst and
// arch/x86/include/uapi/asm/kvm.h.
const (
	getAPIVersion       = 0xae00
	createVM            = 0xae01
	getVCPUMapSize      = 0xae04
	createVCPU          = 0xae41
	setTSSAddr          = 0xae47
	setUserMemoryRegion = 0x4020ae46
	runVCPU             = 0xae80
	setRegs             = 0x4090ae82
	getSregs            = 0x8138ae83
	setSregs            = 0x4138ae84

	exitHlt = 5

	exitReason = 8 // offset in struct kvm_run
	minRun     = 4096
)

// The machine's memory: three page tables, which map the first two megabytes to
// themselves, and a page of code.
const (
	pageSize  = 4096
	memory    = 4 * pageSize
	codeAt    = 3 * pageSize
	tssAddr   = 0xfffbd000 // three pages that the guest does not use; Intel needs them
	present   = 1 << 0
	writable  = 1 << 1
	largePage = 1 << 7
)

// code is dec rcx; jnz to it; hlt.
var code = []byte{0x48, 0xff, 0xc9, 0x75, 0xfb, 0xf4}

type memoryRegion struct {
	slot, flags                uint32
	guestPhys, size, userspace uint64
}

type regs struct {
	rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp uint64
	r8, r9, r10, r11, r12, r13, r14, r15   uint64
	rip, rflags                            uint64
}

type segment struct {
	base                          uint64
	limit                         uint32
	selector                      uint16
	typ, present, dpl, db         uint8
	s, l, g, avl, unusable, spare uint8
}

type dtable struct {
	base  uint64
	limit uint16
	_     [3]uint16
}

type sregs struct {
	cs, ds, es, fs, gs, ss, tr, ldt        segment
	gdt, idt                               dtable
	cr0, cr2, cr3, cr4, cr8, efer, apicBas uint64
	interrupts                             [4]uint64
}

// system asks the kernel.
type system struct{}

func (system) open() (device, error) {
	f, err := os.OpenFile(devicePath, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return kernelDevice{f}, nil
}

type kernelDevice struct{ f *os.File }

func (d kernelDevice) close() { d.f.Close() }

func (d kernelDevice) version() (int, error) { return ioctl(d.f, getAPIVersion, 0) }

func (d kernelDevice) machine() (vm, error) {
	fd, err := ioctl(d.f, createVM, 0)
	if err != nil {
		return nil, err
	}
	return &kernelVM{dev: d.f, vm: os.NewFile(uintptr(fd), "kvm-vm")}, nil
}

// ioctl repeats interrupted calls.
func ioctl(f *os.File, request, arg uintptr) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, arg)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

type kernelVM struct {
	dev, vm, vcpu *os.File
	mem, state    []byte
	rounds        int
}

func (m *kernelVM) close() {
	if m.state != nil {
		unix.Munmap(m.state)
	}
	if m.vcpu != nil {
		m.vcpu.Close()
	}
	m.vm.Close()
	if m.mem != nil {
		unix.Munmap(m.mem)
	}
}

func (m *kernelVM) load(n int) error {
	m.rounds = n
	var err error
	if m.mem, err = unix.Mmap(-1, 0, memory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	binary.LittleEndian.PutUint64(m.mem, pageSize|present|writable)
	binary.LittleEndian.PutUint64(m.mem[pageSize:], 2*pageSize|present|writable)
	binary.LittleEndian.PutUint64(m.mem[2*pageSize:], present|writable|largePage)
	copy(m.mem[codeAt:], code)
	// PVM has no such call, and AMD no use for it: a failure shows in run.
	_, _ = ioctl(m.vm, setTSSAddr, tssAddr)
	region := memoryRegion{size: memory, userspace: uint64(uintptr(unsafe.Pointer(&m.mem[0])))}
	if _, err := ioctl(m.vm, setUserMemoryRegion, uintptr(unsafe.Pointer(&region))); err != nil {
		return fmt.Errorf("KVM_SET_USER_MEMORY_REGION: %w", err)
	}
	fd, err := ioctl(m.vm, createVCPU, 0)
	if err != nil {
		return fmt.Errorf("KVM_CREATE_VCPU: %w", err)
	}
	m.vcpu = os.NewFile(uintptr(fd), "kvm-vcpu")
	size, err := ioctl(m.dev, getVCPUMapSize, 0)
	if err != nil {
		return fmt.Errorf("KVM_GET_VCPU_MMAP_SIZE: %w", err)
	}
	if size < minRun {
		return fmt.Errorf("KVM_GET_VCPU_MMAP_SIZE: %d bytes are too few", size)
	}
	if m.state, err = unix.Mmap(int(m.vcpu.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map the processor's state: %w", err)
	}
	return m.longMode()
}

// longMode puts the processor into 64-bit mode at the highest privilege, where kernels
// are.
func (m *kernelVM) longMode() error {
	var s sregs
	if _, err := ioctl(m.vcpu, getSregs, uintptr(unsafe.Pointer(&s))); err != nil {
		return fmt.Errorf("KVM_GET_SREGS: %w", err)
	}
	s.cs = segment{limit: 0xffffffff, selector: 8, typ: 11, present: 1, s: 1, l: 1, g: 1}
	data := segment{limit: 0xffffffff, selector: 16, typ: 3, present: 1, s: 1, db: 1, g: 1}
	s.ds, s.es, s.fs, s.gs, s.ss = data, data, data, data, data
	s.cr0 = 0x80050033 // PG, AM, WP, NE, ET, MP, PE
	s.cr3 = 0
	s.cr4 = 0x20   // PAE
	s.efer = 0x500 // LME, LMA
	if _, err := ioctl(m.vcpu, setSregs, uintptr(unsafe.Pointer(&s))); err != nil {
		return fmt.Errorf("KVM_SET_SREGS: %w", err)
	}
	return nil
}

func (m *kernelVM) run() (time.Duration, error) {
	runtime.LockOSThread() // KVM wants a processor's calls from one thread
	defer runtime.UnlockOSThread()
	r := regs{rcx: uint64(m.rounds), rip: codeAt, rflags: 2}
	if _, err := ioctl(m.vcpu, setRegs, uintptr(unsafe.Pointer(&r))); err != nil {
		return 0, fmt.Errorf("KVM_SET_REGS: %w", err)
	}
	begin := time.Now()
	if _, err := ioctl(m.vcpu, runVCPU, 0); err != nil {
		return 0, fmt.Errorf("KVM_RUN: %w", err)
	}
	took := time.Since(begin)
	if why := binary.LittleEndian.Uint32(m.state[exitReason:]); why != exitHlt {
		return 0, errors.New(exitName(why))
	}
	return took, nil
}

func exitName(why uint32) string {
	switch why {
	case 8:
		return "the guest shut down (KVM_EXIT_SHUTDOWN)"
	case 9:
		return "the processor refused the guest's state (KVM_EXIT_FAIL_ENTRY)"
	case 17:
		return "KVM met an instruction that it can't emulate (KVM_EXIT_INTERNAL_ERROR)"
	}
	return fmt.Sprintf("the guest ended with KVM's exit reason %d", why)
}
