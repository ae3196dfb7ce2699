// Package reclaim frees memory in processes that have started and now wait. A
// start touches most of the program once and leaves a heap of garbage. A bottle
// has four processes, so this is most of the memory of an idle bottle. Start
// reading at [After].
package reclaim

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// StartGC is the GC percentage during the start: the first collection comes at
// 16 MiB. By default it comes at 4 MiB, which a start alone fills, and a short
// run gains nothing from it.
const StartGC = 400

// Patience is the age at which a process frees memory. In a shorter run that
// costs more than it gains.
const Patience = time.Second

// After calls Rest once, d from now. stop cancels it.
func After(d time.Duration) (stop func()) {
	t := time.AfterFunc(d, Rest)
	return func() { t.Stop() }
}

// Rest frees memory that this process does not need while it waits: garbage,
// and the pages of the program, which the kernel reads again from the page
// cache, in large pieces, when they are used.
func Rest() {
	debug.FreeOSMemory()
	for _, s := range fixed() {
		// An error is ignored: the process then stays as large as it was.
		unix.Madvise(s, unix.MADV_DONTNEED)
	}
}

// Collecting sets GOGC to percent after the next collection, or after d at the
// latest. Until then it is StartGC.
func Collecting(percent int, d time.Duration) {
	set := sync.OnceFunc(func() { debug.SetGCPercent(percent) })
	debug.SetGCPercent(StartGC)
	runtime.AddCleanup(new([64]byte), func(struct{}) { set() }, struct{}{})
	time.AfterFunc(d, set)
}

// fixed returns the parts of the program that are mapped from its file and not
// writable, text and constants, so that dropping them loses nothing.
func fixed() (out [][]byte) {
	aux, err := unix.Auxv()
	if err != nil {
		return nil
	}
	const phdrTag, phnumTag = 3, 5 // AT_PHDR, AT_PHNUM
	var at, n uintptr
	for _, kv := range aux {
		switch kv[0] {
		case phdrTag:
			at = kv[1]
		case phnumTag:
			n = kv[1]
		}
	}
	if at == 0 || n == 0 || n > 64 {
		return nil
	}
	page := uintptr(unix.Getpagesize())
	heads := unsafe.Slice((*programHeader)(mapped(at)), n)
	base := uintptr(0) // the difference between the program's address and the one in its file
	for _, h := range heads {
		if h.kind == ptPhdr {
			base = at - uintptr(h.vaddr)
		}
	}
	for _, h := range heads {
		if h.kind != ptLoad || h.flags&pfWrite != 0 || h.filesz != h.memsz {
			continue
		}
		// Whole pages only: the last one may be shared with writable data.
		start := (base + uintptr(h.vaddr) + page - 1) &^ (page - 1)
		end := (base + uintptr(h.vaddr+h.memsz)) &^ (page - 1)
		if end > start {
			out = append(out, unsafe.Slice((*byte)(mapped(start)), end-start))
		}
	}
	return out
}

// mapped converts an address of the program, which the collector does not move.
func mapped(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

const (
	ptLoad  = 1
	ptPhdr  = 6
	pfWrite = 2
)

// programHeader is Elf64_Phdr, elf(5).
type programHeader struct {
	kind, flags          uint32
	offset, vaddr, paddr uint64
	filesz, memsz, align uint64
}
