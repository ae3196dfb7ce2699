package docker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/handover"
)

const (
	maxMessage = 64 << 20 // bytes of a message between carboy and its helper
	maxFiles   = 250      // descriptors that come along; the kernel takes 253
)

// send writes a message with descriptors.
func send(c *net.UnixConn, v any, files []*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxMessage || len(files) > maxFiles {
		return errors.New("too much for carboy's helper")
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(b)))
	if _, _, err := c.WriteMsgUnix(head, unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	_, err = c.Write(b)
	return err
}

// receive reads a message with descriptors, which the caller closes.
func receive(c *net.UnixConn, v any) (files []*os.File, err error) {
	head, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, m, flags, _, err := c.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, err
	}
	files, err = handover.Files(oob[:m])
	size := binary.BigEndian.Uint32(head)
	if err == nil && (n != len(head) || flags&unix.MSG_CTRUNC != 0 || size > maxMessage) {
		err = errors.New("a message in pieces")
	}
	b := make([]byte, min(size, maxMessage))
	if err == nil {
		_, err = io.ReadFull(c, b)
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}
