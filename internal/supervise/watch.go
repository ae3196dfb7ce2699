package supervise

import (
	"context"
	"encoding/binary"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pollEvery is the interval of reading the queue if the kernel has no inotify watch left.
const pollEvery = 40 * time.Millisecond

// follow calls changed with the name of each file that comes or goes in dir, until ctx is
// done. The name is "" if any file may have changed. follow returns once it watches.
func follow(ctx context.Context, dir string, changed func(name string)) (done <-chan struct{}) {
	end := make(chan struct{})
	f := watchFile(dir)
	if f == nil {
		go func() {
			defer close(end)
			tick := time.NewTicker(pollEvery)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					changed("")
				}
			}
		}()
		return end
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	go func() {
		defer close(end)
		defer stop()
		defer f.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			if err != nil || ctx.Err() != nil {
				return
			}
			for _, name := range eventNames(buf[:n]) {
				changed(name)
			}
		}
	}()
	return end
}

// watchFile returns an inotify file for dir, or nil if the kernel gives none. It is a
// variable so that tests can do without inotify.
var watchFile = func(dir string) *os.File {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_ONLYDIR|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF); err != nil {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "inotify")
}

// eventNames decodes inotify events. An event without a name, such as an overflow, may be
// about any file.
func eventNames(b []byte) (names []string) {
	for len(b) >= unix.SizeofInotifyEvent {
		n := int(binary.NativeEndian.Uint32(b[12:16]))
		name := ""
		if end := unix.SizeofInotifyEvent + n; end <= len(b) {
			name = strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
			b = b[end:]
		} else {
			b = nil
		}
		if !strings.HasPrefix(name, tmpPrefix) {
			names = append(names, name)
		}
	}
	return names
}

// Watch returns a channel that gets a message when the waiting proposals may have changed,
// and one at once. One message may stand for several changes. The channel is closed when
// ctx is done.
func (q *Queue) Watch(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	out <- struct{}{}
	done := follow(ctx, q.waiting.path, func(string) {
		select {
		case out <- struct{}{}:
		default:
		}
	})
	// A killed process changes nothing in the directory, so look from time to time as well.
	go func() {
		defer close(out)
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				select {
				case out <- struct{}{}:
				default:
				}
			}
		}
	}()
	return out
}
